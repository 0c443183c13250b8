"""Finds which tokens the grammars of a step allow, on a thread of its own while the model computes.

`begin` is called before the body of a step and `rows` before its sampling, which waits for what is
not done yet. In between the constraints belong to that thread. Where no request has a grammar there
is no thread.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kokuban.core.request import Request, RequestId
from kokuban.kernels.sampling import RowMasks
from kokuban.sampling.grammar import CompiledGrammar, Constraint


class Grammars(Protocol):
    """Finds what was compiled; see `engine.grammars`."""

    def find(self, source: str) -> CompiledGrammar: ...


class Wanted(NamedTuple):
    """The masks of one request in a step: one, and one more for each draft."""

    request_id: RequestId
    constraint: Constraint
    drafts: tuple[int, ...]


class MaskFiller:
    """Owns the thread and the memory of the masks.

    Args:
        grammars: None where no request has a grammar.
    """

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._thread: ThreadPoolExecutor | None = None
        self._words = np.empty((0, 0), np.uint32)
        self._first: dict[RequestId, int] = {}
        self._filled: Future[None] | None = None

    def constraint(self, request: Request, said: Sequence[int]) -> Constraint | None:
        """What holds a request to its grammar, from its output so far on; None: it has none."""
        if request.params.grammar is None:
            return None
        assert self._grammars is not None, "a request has a grammar, and nothing compiles it"
        return self._grammars.find(request.params.grammar).begin(request, said)

    def begin(self, wanted: Sequence[Wanted]) -> None:
        """Start to fill the masks of a step; those of the step before are gone."""
        self._first = {}
        if not wanted:
            return
        num_masks = 0
        for each in wanted:
            self._first[each.request_id] = num_masks
            num_masks += 1 + len(each.drafts)
        width = wanted[0].constraint.width
        if self._words.shape[0] < num_masks or self._words.shape[1] != width:
            self._words = np.empty((num_masks, width), np.uint32)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="kokuban-masks")
        self._filled = self._thread.submit(_fill, self._words, wanted, self._first)

    def rows(self, requests: Sequence[tuple[RequestId, int]]) -> RowMasks | None:
        """The masks of some rows of logits, when all of the step are there.

        Args:
            requests: whose rows follow each other, and how many each has.

        Returns:
            None when none of the requests has a grammar.
        """
        if not any(request_id in self._first for request_id, _ in requests):
            return None
        if self._filled is not None:
            self._filled.result()
            self._filled = None
        of: list[int] = []
        for request_id, num_rows in requests:
            first = self._first.get(request_id)
            of += [-1] * num_rows if first is None else range(first, first + num_rows)
        return RowMasks(self._words, np.array(of, np.int32))

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def _fill(
    words: NDArray[np.uint32], wanted: Sequence[Wanted], first: Mapping[RequestId, int]
) -> None:
    for request_id, constraint, drafts in wanted:
        begin = first[request_id]
        constraint.fill(words[begin : begin + 1 + len(drafts)], drafts)
