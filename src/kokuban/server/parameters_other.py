"""The fields that are known and do nothing here: taken where the answer stays the same, refused
with the way out where it would not. See `server.parameters`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kokuban.server.parameter import Api, Fate, Parameter


def _ignored(origin: str, why: str, apis: Api = Api.BOTH, **kinds: str) -> Iterator[Parameter]:
    """Fields with their types, for one reason."""
    for name, kind in kinds.items():
        yield Parameter(
            name=name, kind=kind, meaning=why, origin=origin, apis=apis, fate=Fate.IGNORED
        )


def _refused(
    origin: str, way_out: str, apis: Api = Api.BOTH, **neutral: Sequence[Any]
) -> Iterator[Parameter]:
    """Fields with the values that ask for nothing, beside null, false and what is empty."""
    for name, values in neutral.items():
        yield Parameter(
            name=name,
            kind="any",
            meaning=way_out,
            origin=origin,
            apis=apis,
            fate=Fate.REFUSED,
            neutral=(False, "", [], {}, *values),
        )


_IGNORED = (
    *_ignored("OpenAI", "Finished answers are not kept here.", Api.CHAT, store="boolean"),
    *_ignored("OpenAI", "Labels of kept answers; none are kept.", Api.CHAT, metadata="object"),
    *_ignored(
        "OpenAI", "There is one tier; the answer says `default`.", Api.CHAT, service_tier="string"
    ),
    *_ignored("OpenAI", "The API key says who asks.", Api.CHAT, safety_identifier="string"),
    *_ignored("OpenAI", "Ask for a short answer in words.", Api.CHAT, verbosity="string"),
    *_ignored(
        "OpenAI",
        "Drafts come from the prompt and the text so far: `--speculate ngram`.",
        Api.CHAT,
        prediction="object",
    ),
    *_ignored("vLLM", "The header `X-Request-Id` names a request.", request_id="string"),
    *_ignored("llama.cpp", "Prompts are always cached.", cache_prompt="boolean"),
    *_ignored("llama.cpp", "There are no slots to choose from.", id_slot="integer"),
    *_ignored(
        "llama.cpp",
        "`usage.kokuban` has the times.",
        timings_per_token="boolean",
        return_progress="boolean",
    ),
)

_TOOLS = "use tools instead"
_SAMPLER = "the sampler has temperature, top_k, top_p and min_p"

_REFUSED_OPENAI = (
    *_refused("OpenAI", _TOOLS, Api.CHAT, functions=(), function_call=("none",)),
    *_refused("OpenAI", "this server answers in text only", Api.CHAT, audio=()),
    *_refused("OpenAI", "this server has no search", Api.CHAT, web_search_options=()),
    *_refused("OpenAI", "this server does not moderate; do it before and after", moderation=()),
)

_REFUSED_VLLM = (
    *_refused("vLLM", "use grammar, in which tags are texts", structural_tag=()),
    *_refused(
        "vLLM",
        "white space between the marks of JSON has a limit of its own; use grammar",
        guided_whitespace_pattern=(),
    ),
    *_refused("vLLM", "a chat cannot be echoed; use /v1/completions", Api.CHAT, echo=()),
    *_refused("vLLM", "the template writes them", Api.CHAT, add_special_tokens=()),
    *_refused(
        "vLLM",
        "the chat template comes with the model and cannot be replaced by a request",
        Api.CHAT,
        chat_template=(),
    ),
    *_refused(
        "vLLM",
        "beam search is not served; use n or best_of, or LLM.beam_search offline",
        use_beam_search=(),
        length_penalty=(1,),
        early_stopping=(),
    ),
    *_refused("vLLM", "prompts are never cut; shorten it yourself", truncate_prompt_tokens=()),
    *_refused("vLLM", "use /v1/completions with echo and logprobs", prompt_logprobs=()),
    *_refused("vLLM", "use logit_bias", logits_processors=(), allowed_token_ids=(), bad_words=()),
    *_refused("vLLM", "use logprobs", logprob_token_ids=(), return_tokens_as_token_ids=()),
    *_refused("vLLM", "use logprobs with text_offset", return_token_offsets=()),
    *_refused("vLLM", "send text or token ids", prompt_embeds=(), mm_processor_kwargs=()),
    *_refused("vLLM", "KV is moved by the server alone", kv_transfer_params=()),
    *_refused("vLLM", "the model decides how long it thinks", thinking_token_budget=(-1,)),
    *_refused("vLLM", "use repetition_penalty or stop", repetition_detection=()),
    *_refused("vLLM", "text is always made, as the tokenizer says", detokenize=(True,)),
    *_refused(
        "vLLM", "text is always made, as the tokenizer says", spaces_between_special_tokens=(True,)
    ),
    *_refused("vLLM", "there are no such extensions here", vllm_xargs=()),
)

_REFUSED_LLAMA_CPP = (
    *_refused("llama.cpp", "use max_tokens", n_predict=(-1,), t_max_predict_ms=(0, -1)),
    *_refused("llama.cpp", "use repetition_penalty", repeat_penalty=(1,), repeat_last_n=(-1,)),
    *_refused("llama.cpp", "use logprobs", n_probs=(0,), post_sampling_probs=()),
    *_refused(
        "llama.cpp",
        _SAMPLER,
        typical_p=(1,),
        top_n_sigma=(-1, 0),
        mirostat=(0,),
        xtc_probability=(0,),
        dry_multiplier=(0,),
        dynatemp_range=(0,),
        min_keep=(0,),
        samplers=(),
    ),
    *_refused("llama.cpp", "prompts are never cut", n_keep=(0,), n_discard=(0,)),
    *_refused("llama.cpp", "use stop", n_indent=(0,)),
    *_refused("llama.cpp", "use return_token_ids", return_tokens=()),
    *_refused("llama.cpp", "the answer is always whole", response_fields=()),
    *_refused("llama.cpp", "no adapters are loaded here", lora=()),
)

OTHER = (*_IGNORED, *_REFUSED_OPENAI, *_REFUSED_VLLM, *_REFUSED_LLAMA_CPP)
