"""The machine's numbers are measured, each of them, and in the order that physics allows."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from kokuban.kernels.native import isa_name, make_threads
from kokuban.plan.machine import MachineConstants
from kokuban.runner.measure import MachineBench


def bench(directory: Path) -> MachineBench:
    return MachineBench(
        pool=make_threads(1),
        threads=1,
        isa_cap=-1,
        cpu="A CPU",
        isa=isa_name(),
        directory=directory,
        budget_s=0.0,
        memory_bytes=4 << 20,
        disk_bytes=1 << 20,
        num_rows=16,
    )


def test_every_rate_is_measured_and_says_of_what(tmp_path: Path) -> None:
    steps: list[str] = []

    constants = bench(tmp_path / "new").measure(steps.append)

    guesses = asdict(MachineConstants())
    left = {name for name, value in asdict(constants).items() if value == guesses[name]}
    assert left == {
        # Those that `bench.machine` adds.
        "dram_read_bytes_per_s",
        "cache_read_bytes_per_s",
        "fp32_peak_flops_per_s",
        "int8_peak_flops_per_s",
        "op_overhead_s",
        "step_overhead_s",
        "row_overhead_s",
        "token_overhead_s",
        "threads",
    }
    assert (constants.source, constants.cpu, constants.isa) == ("measured", "A CPU", isa_name())
    assert len(constants.date) == 10
    assert steps == ["matrix products", "attention and values", "copies and disk"]
    assert constants.disk_latency_s > 0


def test_nothing_is_left_on_the_disk(tmp_path: Path) -> None:
    bench(tmp_path).measure()

    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: memoryview) -> int:
        raise OSError(28, f"no space for {len(content)} bytes at {descriptor}")

    monkeypatch.setattr(os, "write", full)

    with pytest.raises(OSError, match="no space"):
        bench(tmp_path).measure()
    assert list(tmp_path.iterdir()) == []
