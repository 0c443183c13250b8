"""Turns logits into tokens, for all requests of a step in one native call.

Owns: nothing that lasts. Each row's outcome follows from its logits and its `SamplingState`.
Never: fails as a whole because one row's logits are not finite; that row gets a text instead.

Logprobs are those of the model itself: before penalties, biases, temperature and filters. The order
of all that is in csrc/kernels/sampling/sampling.h.
"""

from collections.abc import Sequence
from typing import Any

from kokuban.core.step import SampledToken, TokenLogprob
from kokuban.kernels import sampling as kernel
from kokuban.kernels.sampling import FloatArray, RowMasks, SampledRows
from kokuban.sampling.state import SamplingState

_ERRORS = {
    kernel.NOT_FINITE: (
        "the model gave logits that are not finite (NaN or infinity) for this request; its weights "
        "or its KV cache may be damaged"
    ),
    kernel.NO_TOKEN: (
        "no token may follow: min_tokens or the grammar rules out every token of the vocabulary; "
        "lower min_tokens or loosen the grammar"
    ),
    kernel.NO_MEMORY: "the sampler is out of memory; run fewer requests at a time",
}


class Sampler:
    """One for each runner.

    Args:
        valid_vocab: number of ids that the tokenizer knows. Rows beyond them, which pad the output
            matrix, are never sampled. None: all.
        pool: the native thread pool, whose work items are the rows; None: the caller's thread.
        isa_cap: best instruction set level to use (`core.env.max_isa()`); -1: what there is.
    """

    def __init__(
        self, *, valid_vocab: int | None = None, pool: Any = None, isa_cap: int = -1
    ) -> None:
        self._valid_vocab = valid_vocab
        self._pool = pool
        self._isa_cap = isa_cap

    def sample(
        self,
        logits: FloatArray,
        states: Sequence[SamplingState],
        masks: RowMasks | None = None,
    ) -> list[SampledToken | str]:
        """Choose the next token of each request.

        The states do not change: call `append` on each with the token that is accepted.

        Args:
            logits: [R, V] float32 without gaps. Changed during the call, put back at its end.
            states: R of them, in the order of the rows.
            masks: which tokens may be chosen, where a grammar says so.

        Returns:
            For each row a token, or the text of an error that concerns this request alone.
        """
        found = kernel.sample_rows(
            logits,
            [state.row for state in states],
            masks=masks,
            valid_vocab=self._valid_vocab,
            pool=self._pool,
            isa_cap=self._isa_cap,
        )
        outcomes = _outcomes(found, [state.num_logprobs is not None for state in states])
        if masks is None:
            return outcomes
        return [
            (isinstance(outcome, str) and state.constraint and state.constraint.error) or outcome
            for outcome, state in zip(outcomes, states, strict=True)
        ]

    def score(
        self, logits: FloatArray, token_ids: Sequence[int], num_top: int | Sequence[int]
    ) -> list[SampledToken | str]:
        """How likely each given token is under its row: for `prompt_logprobs`.

        Args:
            logits: [R, V] float32 without gaps; not changed.
            token_ids: [R], the token that followed in the prompt.
            num_top: most likely tokens to report, for all rows or for each.

        Returns:
            As `sample` does.

        Raises:
            ValueError: a token id is outside the vocabulary.
        """
        found = kernel.score_rows(
            logits,
            token_ids,
            num_top,
            valid_vocab=self._valid_vocab,
            pool=self._pool,
            isa_cap=self._isa_cap,
        )
        return _outcomes(found, [True] * len(token_ids))


def _outcomes(found: SampledRows, with_logprobs: Sequence[bool]) -> list[SampledToken | str]:
    tokens, status = found.tokens.tolist(), found.status.tolist()
    logprobs, tops = found.logprobs.tolist(), _tops(found)
    outcomes: list[SampledToken | str] = []
    for r, token in enumerate(tokens):
        if status[r] != kernel.OK:
            outcomes.append(_ERRORS[status[r]])
        elif with_logprobs[r]:
            outcomes.append(SampledToken(token, logprobs[r], tops[r]))
        else:
            outcomes.append(SampledToken(token))
    return outcomes


def _tops(found: SampledRows) -> list[tuple[TokenLogprob, ...]]:
    counts = found.top_counts.tolist()
    if not any(counts):
        return [()] * len(counts)
    # Whole arrays at once: slices of them cost more than the numbers that nobody asked for.
    rows = zip(counts, found.top_ids.tolist(), found.top_logprobs.tolist(), strict=True)
    return [tuple(map(TokenLogprob, ids[:count], values[:count])) for count, ids, values in rows]
