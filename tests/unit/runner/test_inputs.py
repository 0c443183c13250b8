"""The arrays of a step, from a plan."""

from kokuban.core.request import BlockId, RequestId
from kokuban.core.step import Chunk, StepPlan
from kokuban.runner.inputs import build_input
from kokuban.runner.rows import Rows


def test_chunks_lie_end_to_end_with_their_own_positions_and_slots() -> None:
    """A request that decodes at position 17, beside a prompt of 3 tokens from position 0."""
    rows: Rows[None] = Rows(num_groups=2)
    for name in ("decodes", "begins"):
        rows.add(RequestId(name), None)
    first = Chunk(
        RequestId("decodes"), 0, tuple(range(17)), ((BlockId(5), BlockId(1)), (BlockId(6),) * 2),
        samples=True,
    )  # fmt: skip
    build_input(StepPlan(0, (first,)), rows, 16)
    decode = Chunk(RequestId("decodes"), 17, (70,), ((), ()), samples=True)
    prompt = Chunk(
        RequestId("begins"), 0, (80, 81, 82), ((BlockId(3),), (BlockId(2),)), samples=False
    )

    found = build_input(StepPlan(1, (decode, prompt)), rows, 16)

    assert found.token_ids.tolist() == [70, 80, 81, 82]
    assert found.positions.tolist() == [17, 0, 1, 2]
    assert found.query_start.tolist() == [0, 1, 4]
    assert found.slots.tolist() == [[17, 48, 49, 50], [97, 32, 33, 34]]
    assert found.block_tables.shape == (2, 2, 2)
    assert found.block_tables[0].tolist() == [[5, 1], [3, -1]]
    for array in (found.token_ids, found.positions, found.query_start, found.block_tables):
        assert array.dtype.name == "int32"
        assert array.flags.c_contiguous
