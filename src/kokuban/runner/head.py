"""Which rows of a step the head computes, in which tiles, and what comes of each chunk's rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kokuban.core.step import Chunk, ChunkOutput, SampledToken
from kokuban.runner.pooling import PromptPool

HEAD_ROWS = 64
"""Rows of logits at a time: a prompt that is scored must not need gigabytes of them."""


class HeadRow(NamedTuple):
    """A row of the step that the head computes."""

    chunk: Chunk
    row: int
    """Among the T of the step."""

    target: int | None
    """The prompt token that follows, when this row scores it; else None."""

    pool: PromptPool | None = None
    """Gets the hidden state of the row; None when it has logits, which are scored or sampled."""


def tiles(head: Sequence[HeadRow], most_pooled: int) -> Iterator[tuple[int, int]]:
    """First row and end of each tile.

    A tile has HEAD_ROWS rows at most, or `most_pooled` that are pooled; rows of both kinds are
    never in one, and a chunk with drafts is not cut.
    """
    borders = [
        i for i in range(1, len(head)) if (head[i].pool is None) != (head[i - 1].pool is None)
    ]
    begin = 0
    for border in (*borders, len(head)):
        while begin < border:
            if head[begin].pool is None:
                end = _tile_end(head, begin, border)
            else:
                end = min(begin + most_pooled, border)
            yield begin, end
            begin = end


def _tile_end(head: Sequence[HeadRow], begin: int, border: int) -> int:
    """Where a tile of logits ends: in front of a chunk with drafts that would be cut."""
    end = begin + HEAD_ROWS
    if end >= border:
        return border
    chunk = head[end].chunk
    if not chunk.num_drafts:
        return end
    return next(i for i in range(end, -1, -1) if i == 0 or head[i - 1].chunk is not chunk)


class Findings:
    """Gathers what one chunk found; an error of any of its rows is the chunk's."""

    def __init__(self) -> None:
        self._tokens: list[SampledToken] = []
        self._scores: list[SampledToken] = []
        self._embedding: bytes | None = None
        self._error: str | None = None

    def sampled(self, found: SampledToken | str) -> None:
        self._take(found, self._tokens)

    def scored(self, found: SampledToken | str) -> None:
        self._take(found, self._scores)

    def pooled(self, found: bytes | str) -> None:
        if isinstance(found, str):
            self._error = found
        else:
            self._embedding = found

    def finish(self) -> ChunkOutput:
        if self._error is not None:
            return ChunkOutput(error=self._error)
        return ChunkOutput(tuple(self._tokens), tuple(self._scores), embedding=self._embedding)

    def _take(self, found: SampledToken | str, tokens: list[SampledToken]) -> None:
        if isinstance(found, str):
            self._error = found
        else:
            tokens.append(found)
