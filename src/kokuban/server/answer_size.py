"""Bounds what one answer may hold, before anything is computed.

Texts are bounded by the context, logprobs by nothing: each token may have twenty others beside it,
in each of 128 choices, and an answer that is not streamed is held as a whole.
"""

from collections.abc import Sequence

from kokuban.core.errors import RequestError
from kokuban.core.sampling_params import SamplingParams

MAX_LOGPROBS_OF_ANSWER = 2**22
"""Logprobs in one answer, with those of the alternatives; some 100 bytes each. A context of
128 Ki tokens with all twenty alternatives fits."""


def check_num_logprobs(
    params: SamplingParams, prompts: Sequence[Sequence[int]], context: int, *, stream: bool
) -> None:
    """Refuse an answer with too many logprobs.

    Args:
        params: `n` choices of each prompt.
        prompts: their token ids.
        context: most tokens of a prompt and its answer.
        stream: new tokens are sent as they come, and need no room; echoed prompts do.

    Raises:
        RequestError: there may be too many.
    """
    count = 0
    if params.prompt_logprobs is not None:
        count += sum(map(len, prompts)) * (1 + params.prompt_logprobs)
    if params.logprobs is not None and not stream:
        limit = context if params.max_tokens is None else params.max_tokens
        new = sum(max(0, min(limit, context - len(prompt))) for prompt in prompts)
        count += new * (1 + params.logprobs)
    count *= params.n
    if count > MAX_LOGPROBS_OF_ANSWER:
        raise RequestError(
            f"the answer could hold {count:,} logprobs, and the limit is "
            f"{MAX_LOGPROBS_OF_ANSWER:,}; ask for fewer tokens, choices or alternatives, or stream",
            param="logprobs",
        )
