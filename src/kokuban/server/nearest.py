"""Finds what was computed before that begins most like a prompt.

Tokens are compared as bytes, in C: a pair of prompts costs about as much as copying the part that
they have in common. Nothing here is written, so that a worker thread may do it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kokuban.server.record import TOKEN_BYTES, Record

_FIRST_STEP = 64 * TOKEN_BYTES
"""Bytes that are compared first: most pairs differ soon."""


@dataclass(frozen=True, slots=True)
class Past:
    """A request as it stood when it was looked at, on the event loop."""

    request_id: str
    scope: str
    prompts: Sequence[bytes]
    outputs: "Mapping[int, array[int]]"
    """By choice. They may grow while they are read; what is there does not change."""

    num_choices: int
    """Of each prompt."""

    computed_s: float
    """From when on its prompts' KV was there."""

    ended_s: float | None
    """From when on its outputs' KV was there too, and nobody held it; None while it runs."""

    @classmethod
    def of(cls, record: Record) -> "Past | None":
        """None as long as nothing of it has been computed, or if there was nothing to compute."""
        if not record.usages or record.first_token_s is None:
            return None
        return cls(
            record.request_id,
            record.scope,
            tuple(record.prompts),
            dict(record.outputs),
            record.n,
            record.first_token_s,
            record.ended_s,
        )


@dataclass(frozen=True, slots=True)
class Nearest:
    """A sequence of tokens that begins like a prompt: the prompt and the output of a choice."""

    past: Past
    prompt: int
    """Which of the request's prompts."""

    choice: int | None
    """Which output follows it; None when the common part does not go into any."""

    num_common: int
    """Tokens from the start that are the same."""

    num_available: int
    """Those of them whose KV had been computed when the prompt was admitted."""

    ends: bool
    """Whether the sequence ends with the common part, rather than going on differently."""

    was_ended: bool
    """Whether the request had ended when the prompt was admitted."""

    next_tokens: bytes
    """What follows the common part; a few tokens."""


def num_common_tokens(left: bytes, right: bytes, start: int = 0) -> int:
    """Length in tokens of the longest common beginning of `left` and of `right` from byte `start`.

    Steps that double find the step that holds the difference, halving finds it in there.
    """
    length = min(len(left), len(right) - start)
    low, step = 0, _FIRST_STEP
    while low < length:
        high = min(length, low + step)
        if left[low:high] != right[start + low : start + high]:
            break
        low, step = high, step * 2
    else:
        return length // TOKEN_BYTES
    # left[:low] is common, left[:high] is not.
    first, last = low // TOKEN_BYTES, -(-high // TOKEN_BYTES)
    while last - first > 1:
        middle = (first + last) // 2
        begin, end = first * TOKEN_BYTES, middle * TOKEN_BYTES
        if left[begin:end] == right[start + begin : start + end]:
            first = middle
        else:
            last = middle
    return first


def find_nearest(prompt: bytes, pasts: Iterable[Past], admitted_s: float) -> Nearest | None:
    """The sequence with the longest common beginning; None when none begins with the same token.

    Of several, one that had been computed in time comes before others, the first in `pasts`
    before those behind it.

    Args:
        admitted_s: when the prompt was looked up in the cache, on the clock of the records.
    """
    best: Nearest | None = None
    for past in pasts:
        for index, other in enumerate(past.prompts):
            num_common = num_common_tokens(other, prompt)
            if not num_common or (best is not None and num_common < _least(best, other)):
                continue
            found = _into_outputs(past, index, prompt, num_common, admitted_s)
            if best is None or _rank(found) > _rank(best):
                best = found
    return best


def _least(best: Nearest, other: bytes) -> int:
    """Common tokens of a prompt below which neither it nor its output can be nearer."""
    return min(best.num_common, len(other) // TOKEN_BYTES)


def _rank(nearest: Nearest) -> tuple[int, int]:
    return nearest.num_common, nearest.num_available


def _into_outputs(
    past: Past, index: int, prompt: bytes, num_common: int, admitted_s: float
) -> Nearest:
    """How far a prompt, or the best of its outputs behind it, goes along with `prompt`."""
    other = past.prompts[index]
    num_prompt = len(other) // TOKEN_BYTES
    choice, length, rest = None, num_prompt, other[num_common * TOKEN_BYTES :][:_FIRST_STEP]
    if num_common == num_prompt:
        for number in range(index * past.num_choices, (index + 1) * past.num_choices):
            if number not in past.outputs:
                continue
            output = past.outputs[number].tobytes()
            more = num_common_tokens(output, prompt, len(other))
            if choice is None or num_prompt + more > num_common:
                choice, num_common = number, num_prompt + more
                length = num_prompt + len(output) // TOKEN_BYTES
                rest = output[more * TOKEN_BYTES :][:_FIRST_STEP]
    return Nearest(
        past=past,
        prompt=index,
        choice=choice,
        num_common=num_common,
        num_available=_available(past, num_prompt, length, num_common, admitted_s),
        ends=num_common == length,
        was_ended=past.ended_s is not None and past.ended_s <= admitted_s,
        next_tokens=rest,
    )


def _available(past: Past, num_prompt: int, length: int, num_common: int, admitted_s: float) -> int:
    """Of the common tokens, those whose KV was there at `admitted_s`."""
    if past.computed_s > admitted_s:
        return 0
    if past.ended_s is None or past.ended_s > admitted_s:
        return min(num_common, num_prompt)
    # The token that was sampled last is never computed.
    return min(num_common, length - 1 if length > num_prompt else length)
