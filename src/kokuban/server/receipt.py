"""What an answer cost, put together from the usages of its choices."""

from collections.abc import Mapping

from kokuban.core.step import Usage
from kokuban.server.openai_responses import CompletionDetails, PromptDetails, Receipt, UsageBody


def merge(usages: Mapping[int, Usage], n: int) -> Usage | None:
    """One usage for choices that belong together; None when there is none.

    What was found in the cache is told by the first choice of each prompt, since the others share
    it with that one. What was written, preempted and computed again adds up. Choices run side by
    side, so that each time is the longest of any of them. A session is resumed by the choice that
    began first.

    Args:
        usages: by choice; choice c of prompt p has the number p * n + c.
        n: choices of each prompt.
    """
    if not usages:
        return None
    firsts = [usage for choice, usage in usages.items() if choice % n == 0]
    every = usages.values()
    prompt_tokens = sum(usage.prompt_tokens for usage in firsts)
    cached_tokens = sum(usage.cached_tokens for usage in firsts)
    written = sum(usage.cache_write_tokens for usage in every)
    return Usage(
        prompt_tokens=prompt_tokens,
        output_tokens=sum(usage.output_tokens for usage in every),
        cached_tokens=cached_tokens,
        cached_ram_tokens=sum(usage.cached_ram_tokens for usage in firsts),
        cached_disk_tokens=sum(usage.cached_disk_tokens for usage in firsts),
        # A choice that lost its blocks may have written some of them twice.
        cache_write_tokens=max(0, min(written, prompt_tokens - cached_tokens)),
        drafted_tokens=sum(usage.drafted_tokens for usage in every),
        accepted_tokens=sum(usage.accepted_tokens for usage in every),
        preemptions=sum(usage.preemptions for usage in every),
        resumed_from=next((usage.resumed_from for usage in every if usage.resumed_from), ""),
        recomputed_tokens=sum(usage.recomputed_tokens for usage in every),
        queue_s=max(usage.queue_s for usage in every),
        prefill_s=max(usage.prefill_s for usage in every),
        decode_s=max(usage.decode_s for usage in every),
    )


def usage_body(
    prompt_tokens: int, completion_tokens: int, merged: Usage | None, reasoning_tokens: int = 0
) -> UsageBody:
    """The counts as the API shows them; zeros for what is not known, or not yet."""
    cost = merged or Usage(0, 0)
    from_below = cost.cached_ram_tokens + cost.cached_disk_tokens
    return UsageBody(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptDetails(cost.cached_tokens, cost.cache_write_tokens),
        CompletionDetails(reasoning_tokens),
        Receipt(
            cached_pool_tokens=cost.cached_tokens - from_below,
            cached_ram_tokens=cost.cached_ram_tokens,
            cached_disk_tokens=cost.cached_disk_tokens,
            resumed_from=cost.resumed_from or _lowest_tier(cost),
            queue_ms=_ms(cost.queue_s),
            prefill_ms=_ms(cost.prefill_s),
            decode_ms=_ms(cost.decode_s),
            preemptions=cost.preemptions,
            recomputed_tokens=cost.recomputed_tokens,
            accepted_prediction_tokens=cost.accepted_tokens,
            rejected_prediction_tokens=cost.drafted_tokens - cost.accepted_tokens,
        ),
    )


def _lowest_tier(cost: Usage) -> str | None:
    if cost.cached_disk_tokens:
        return "disk"
    if cost.cached_ram_tokens:
        return "ram"
    return "pool" if cost.cached_tokens else None


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
