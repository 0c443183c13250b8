"""The simulated executor: what a step takes, what it says, and what the meter is told."""

from dataclasses import replace

import pytest
from tests.fakes import make_request
from tests.unit.simulate.setups import INSTANT, SMALL_KV, small_model

from kokuban.core.request import BlockId, RequestId
from kokuban.core.step import Admission, BlockCopy, Chunk, StepPlan
from kokuban.simulate.executor import SimulatedClock, SimulatedExecutor
from kokuban.simulate.meter import Meter

BLOCK_BYTES = 16 * 2 * 2 * 4 * 2


class Bench:
    """An executor of its own, with what it writes to."""

    def __init__(self, copy_bytes_per_s: float = 1e30) -> None:
        self.clock, self.meter = SimulatedClock(), Meter()
        self.executor = SimulatedExecutor(
            small_model(replace(INSTANT, copy_bytes_per_s=copy_bytes_per_s)),
            SMALL_KV,
            block_size=16,
            block_bytes=BLOCK_BYTES,
            clock=self.clock,
            script=lambda request_id, place: 100 * int(request_id) + place,
            meter=self.meter,
            num_held=lambda: 3,
        )

    def run(self, *chunks: Chunk, **plan: object) -> dict[str, int]:
        """Run a step; returns what each request said."""
        self.executor.submit(StepPlan(step=0, chunks=chunks, **plan))  # type: ignore[arg-type]
        outputs = self.executor.collect().outputs
        return {name: output.tokens[0].token_id for name, output in outputs.items()}


def chunk(name: str, start: int, num_tokens: int, *, samples: bool = True) -> Chunk:
    return Chunk(RequestId(name), start, (0,) * num_tokens, ((),), samples)


def test_requests_say_what_the_script_says_token_by_token() -> None:
    bench = Bench()

    first = bench.run(
        chunk("1", 0, 20), chunk("2", 0, 8, samples=False), admitted=admitted("1", "2")
    )
    second = bench.run(chunk("1", 20, 1), chunk("2", 8, 2))

    assert (first, second) == ({"1": 100}, {"1": 101, "2": 200})


def admitted(*names: str, said: tuple[int, ...] = ()) -> tuple[Admission, ...]:
    return tuple(Admission(make_request(name), said) for name in names)


def test_a_request_that_begins_again_goes_on_where_it_was() -> None:
    bench = Bench()

    assert bench.run(chunk("1", 0, 7), admitted=admitted("1", said=(100, 101))) == {"1": 102}


def test_time_passes_with_the_step_and_the_blocks_that_it_moves() -> None:
    bench = Bench(copy_bytes_per_s=BLOCK_BYTES * 2)
    moves = tuple(BlockCopy(BlockId(index), BlockId(9)) for index in range(3))

    bench.run(chunk("1", 0, 20), admitted=admitted("1"), moves=moves)

    assert bench.clock.now() == pytest.approx(1.0 + 1.5)


def test_a_step_that_only_moves_blocks_takes_its_overhead_and_the_moves() -> None:
    bench = Bench(copy_bytes_per_s=BLOCK_BYTES)

    assert bench.run(moves=(BlockCopy(BlockId(1), BlockId(2)),)) == {}
    assert bench.clock.now() == pytest.approx(1.0 + 1.0)


def test_empty_slots_are_those_of_all_that_hold_blocks_until_they_end() -> None:
    """Three blocks held: 12 slots empty, then 12 + 8, then 8; the last step is thrice as long."""
    bench = Bench(copy_bytes_per_s=BLOCK_BYTES)

    bench.run(chunk("1", 0, 20), admitted=admitted("1"))
    bench.run(chunk("2", 0, 8), admitted=admitted("2"))
    moves = (BlockCopy(BlockId(0), BlockId(1)),) * 2
    bench.run(ended=(RequestId("1"),), moves=moves)

    assert bench.meter.waste == pytest.approx((12 + 20 + 3 * 8) / (5 * 48))
    assert bench.meter.mean_running == pytest.approx((1 + 2 + 3 * 1) / 5)
    assert bench.meter.mean_held_slots == pytest.approx(48)
    assert (bench.meter.max_running, bench.meter.num_tokens) == (2, 28)


def test_nothing_is_wasted_before_anything_has_run() -> None:
    meter = Meter()

    assert (meter.waste, meter.mean_running, meter.mean_held_slots) == (0, 0, 0)


def test_the_clock_never_goes_back() -> None:
    clock = SimulatedClock()
    clock.advance_to(5.0)
    clock.advance_to(3.0)
    clock.advance(0.5)

    assert clock.now() == 5.5
    with pytest.raises(AssertionError, match=r"backwards by 1\.0 s"):
        clock.advance(-1.0)
