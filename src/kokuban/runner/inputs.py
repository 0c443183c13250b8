"""The arrays of one step: the chunks of a plan end to end, unpadded."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kokuban.core.step import StepPlan
from kokuban.runner.rows import Rows

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of R chunks; G KV groups. Built here, read by the native program."""

    token_ids: NDArray[np.int32]
    """[T]."""

    positions: NDArray[np.int32]
    """[T]. Index of each token in its own sequence, from 0."""

    query_start: NDArray[np.int32]
    """[R + 1]. Chunk r owns rows query_start[r] to query_start[r + 1] of the T."""

    slots: NDArray[np.int64]
    """[G, T]. Where each token's K and V go: block_id * block_size + offset."""

    block_tables: NDArray[np.int32]
    """[G, R, M]. Block ids in sequence order; NO_BLOCK where there is none."""


def build_input(plan: StepPlan, rows: Rows[State], block_size: int) -> StepInput:
    """Extend the rows' tables by the plan's new blocks and lay the step out in arrays."""
    chunks = plan.chunks
    row_ids = [rows.extend(chunk) for chunk in chunks]
    lengths = np.array([len(chunk.token_ids) for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    query_start = np.zeros(len(chunks) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])

    # A token's position: the start of its chunk, plus how far it is from the chunk's first row.
    positions = np.arange(query_start[-1], dtype=np.int32)
    positions += np.repeat(starts - query_start[:-1], lengths)
    row_of_token = np.repeat(np.array(row_ids, np.int32), lengths)
    num_blocks = (int((starts + lengths).max()) - 1) // block_size + 1
    return StepInput(
        token_ids=np.array([token for chunk in chunks for token in chunk.token_ids], np.int32),
        positions=positions,
        query_start=query_start,
        slots=rows.slots(row_of_token, positions, block_size),
        block_tables=rows.tables(row_ids, num_blocks),
    )
