"""Choosing a token from each row of logits, and scoring given ones. Native only.

The order of operations and the arithmetic are defined in csrc/kernels/sampling/sampling.h. Every
result is a function of its own row of logits and its own `SamplingRow`: the same bits for every
instruction set, batch and number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kokuban._native as _native
from kokuban.core.sampling_params import SamplingParams

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

OK: Final = 0
NOT_FINITE: Final = 1
"""A logit of the row is NaN or +inf."""
NO_TOKEN: Final = 2
"""Every token of the row is impossible."""
NO_MEMORY: Final = 3

_SEED_MASK = 2**64 - 1
_MAX_INT32 = 2**31 - 1


class SamplingRow:
    """Parameters and token history of one request, in native memory.

    The history counts only if a penalty is set; `append` then costs constant time, and a step costs
    the number of distinct tokens. One thread at a time.

    Args:
        params: `n`, `max_tokens`, the stop strings and `ignore_eos` are not looked at.
        seed: key of the random numbers, taken modulo 2^64.
        choice: part of their counter, below 2^32.
        end_token_ids: impossible while fewer than `params.min_tokens` tokens are generated.
        prompt_token_ids: seen by repetition_penalty only.
        output_token_ids: what was generated before. Their number is the position of the next token
            in the counter of the random numbers, so that preemption changes nothing.
    """

    __slots__ = ("native", "num_logprobs")

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int = 0,
        choice: int = 0,
        end_token_ids: Sequence[int] = (),
        prompt_token_ids: Sequence[int] = (),
        output_token_ids: Sequence[int] = (),
    ) -> None:
        biases = {i: bias for i, bias in params.logit_bias.items() if 0 <= i <= _MAX_INT32}
        seen_prompt = prompt_token_ids if params.repetition_penalty != 1 else ()
        self.num_logprobs = -1 if params.logprobs is None else params.logprobs
        self.native: Any = _native.SamplingRow(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            seed=seed & _SEED_MASK,
            choice=choice,
            min_tokens=params.min_tokens,
            logprobs=self.num_logprobs,
            end_ids=sorted(i for i in end_token_ids if 0 <= i <= _MAX_INT32),
            bias_ids=list(biases),
            biases=list(biases.values()),
            prompt_ids=np.asarray(seen_prompt, np.int32),
            output_ids=np.asarray(output_token_ids, np.int32),
        )

    def append(self, token_id: int) -> None:
        """The output has grown by this token."""
        self.native.append(token_id)

    @property
    def num_output(self) -> int:
        """Tokens of the output so far: the position of the next one."""
        return int(self.native.num_output)


class RowMasks(NamedTuple):
    """Which tokens may be sampled, for some rows of logits."""

    words: NDArray[np.uint32]
    """[M, W] uint32, C order. Token i is allowed where bit i % 32 of word i / 32 is set."""

    of: IntArray
    """[R] int32. The mask of each row; below 0: every token is allowed."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """What was found for each row of logits."""

    tokens: IntArray
    """[R] int32. -1 in a row with an error."""

    status: IntArray
    """[R] int32. OK, or what is wrong with the row."""

    logprobs: FloatArray
    """[R] float32, natural logarithms. 0 where none were asked for."""

    top_ids: IntArray
    """[R, K] int32, best first. Row r is filled up to top_counts[r]."""

    top_logprobs: FloatArray
    """[R, K] float32, filled likewise."""

    top_counts: IntArray
    """[R] int32."""

    native: Any = field(repr=False)

    @staticmethod
    def empty(num_rows: int, max_top: int) -> "SampledRows":
        """Arrays for that many rows and most likely tokens, not filled yet."""
        rows = (np.empty(num_rows, np.int32), np.empty(num_rows, np.int32))
        logprobs = np.empty(num_rows, np.float32)
        top = np.empty((num_rows, max_top), np.int32)
        top_logprobs = np.empty((num_rows, max_top), np.float32)
        counts = np.empty(num_rows, np.int32)
        native = _native.SamplingResults(*rows, logprobs, top, top_logprobs, counts)
        return SampledRows(*rows, logprobs, top, top_logprobs, counts, native)


def sample_rows(
    logits: FloatArray,
    rows: Sequence[SamplingRow],
    *,
    masks: RowMasks | None = None,
    valid_vocab: int | None = None,
    pool: Any = None,
    isa_cap: int = -1,
) -> SampledRows:
    """Choose one token for each row.

    Args:
        logits: [R, V] float32, C order, writable. Changed during the call and put back at its end;
            undefined if the call raises.
        rows: R of them. They are read only: call `append` for every token that is accepted.
        masks: tokens that they do not allow are never sampled; logprobs do not look at them.
        valid_vocab: ids from here on are never sampled and have no part in logprobs. None: V.
        pool: a `_native.ThreadPool` whose work items are the rows; None: this thread alone.
        isa_cap: best instruction set level to use (`core.env.ISA_LEVELS`); -1: what there is.

    Raises:
        ValueError: shapes, dtype, masks or `valid_vocab` are wrong. Nothing has been sampled.
    """
    width = _check_logits(logits, valid_vocab)
    if len(rows) != len(logits):
        raise ValueError(f"{len(rows)} sampling rows for {len(logits)} rows of logits")
    max_top = max((row.num_logprobs for row in rows), default=0)
    results = SampledRows.empty(len(rows), max(max_top, 0))
    native_rows = [row.native for row in rows]
    _native.sample_rows(pool, logits, width, native_rows, results.native, isa_cap, *(masks or ()))
    return results


def score_rows(
    logits: FloatArray,
    target_ids: Sequence[int] | IntArray,
    top_k: int | Sequence[int] | IntArray,
    *,
    valid_vocab: int | None = None,
    pool: Any = None,
    isa_cap: int = -1,
) -> SampledRows:
    """How likely a given token is under each row, and which tokens are the most likely.

    Args:
        logits: [R, V] float32, C order. Not changed.
        target_ids: [R], each below V. One from `valid_vocab` on is compared with the sum over the
            valid ones.
        top_k: most likely tokens wanted, for all rows or for each. The rest as for `sample_rows`.

    Raises:
        ValueError: shapes, dtype, a target or `valid_vocab` are wrong.
    """
    width = _check_logits(logits, valid_vocab)
    targets = np.ascontiguousarray(target_ids, np.int32)
    num_top = np.ascontiguousarray(np.broadcast_to(np.asarray(top_k, np.int32), len(logits)))
    if targets.shape != (len(logits),):
        raise ValueError(f"target_ids has shape {targets.shape}; logits have {len(logits)} rows")
    if targets.size and not (targets.min() >= 0 and targets.max() < logits.shape[1]):
        raise ValueError(f"a target id is not between 0 and {logits.shape[1] - 1}")
    results = SampledRows.empty(len(logits), max(int(num_top.max(initial=0)), 0))
    _native.score_rows(pool, logits, width, targets, num_top, results.native, isa_cap)
    return results


def kept_tokens(
    logits: FloatArray, row: SamplingRow, *, valid_vocab: int | None = None, isa_cap: int = -1
) -> IntArray:
    """The ids among which `sample_rows` would draw, ascending; none if the row has an error.

    Args:
        logits: [1, V] float32, C order, writable; put back at the end.
    """
    width = _check_logits(logits, valid_vocab)
    return np.asarray(_native.kept_tokens(logits, width, row.native, isa_cap), np.int32)


def uniform(seed: int, choice: int, position: int) -> float:
    """The number in [0, 1) that decides the token at this position: 53 bits of Philox4x32-10."""
    return float(_native.random_bits53(seed & _SEED_MASK, choice, position)) * 2.0**-53


def _check_logits(logits: FloatArray, valid_vocab: int | None) -> int:
    if logits.ndim != 2 or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        raise ValueError(
            f"logits are {logits.dtype} of shape {logits.shape}; float32 [R, V] without gaps is "
            "needed"
        )
    width = logits.shape[1] if valid_vocab is None else valid_vocab
    if not 1 <= width <= logits.shape[1]:
        raise ValueError(f"valid_vocab={width} is not between 1 and {logits.shape[1]}")
    return width
