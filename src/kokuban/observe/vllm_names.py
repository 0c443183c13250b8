"""The same numbers under vLLM's names, for dashboards that were made for vLLM.

After the prefix our names are vLLM's wherever both have the number, so that the text that is served
anyway is said twice. What we alone have is not: vLLM's prefix is not ours to extend.
"""

import re

VLLM_NAMES = frozenset(
    {
        "cache_config_info",
        "corrupted_requests",
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_cache_usage_perc",
        "num_preemptions",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "prompt_tokens_cached",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_kv_computed_tokens",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_drafts",
        "time_to_first_token_seconds",
    }
)
"""Without prefix, and without what Prometheus adds to the names of counters and histograms."""

_LINE = re.compile(
    rb"^(# (?:HELP|TYPE) )?kokuban:([a-z0-9_]+?)(_total|_bucket|_count|_sum|_created)?([ {].*)$",
    re.MULTILINE,
)


def with_vllm_names(text: bytes) -> bytes:
    """The exposition, followed by vLLM's part of it under vLLM's names."""
    again = [
        b"%bvllm:%b%b%b" % (found[1] or b"", found[2], found[3] or b"", found[4])
        for found in _LINE.finditer(text)
        if found[2].decode() in VLLM_NAMES  # One of them ends in _total itself.
        or (found[2] + (found[3] or b"")).decode() in VLLM_NAMES
    ]
    return text + b"\n".join(again) + b"\n"
