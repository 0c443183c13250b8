"""`kokuban bench machine`: measures, prints, keeps; and what it keeps is what is found again."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kokuban.cli import app, main
from kokuban.cli.bench_machine import describe, this_machine
from kokuban.plan.machine import MachineConstants, load_constants
from kokuban.runner.measure import MachineBench

MEASURED = MachineConstants(int8_flops_per_s=123.4e9, disk_latency_s=68e-6, source="measured")


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of a machine that is measured at once."""

    def measure(bench: MachineBench, progress: object) -> MachineConstants:
        cpu, isa, threads = this_machine(3)
        return replace(MEASURED, cpu=cpu, isa=isa, threads=threads)

    monkeypatch.setenv("KOKUBAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(MachineBench, "measure", measure)
    return tmp_path / "cache"


def test_what_is_measured_is_kept_for_this_machine_and_these_threads(quick: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "machine", "--threads", "3"])

    assert done.exit_code == 0
    assert "123.40" in done.output
    cpu, isa, _ = this_machine(3)
    known = load_constants(quick, cpu=cpu, isa=isa, threads=3)
    assert (known.source, known.int8_flops_per_s) == ("measured", 123.4e9)
    assert load_constants(quick, cpu=cpu, isa=isa, threads=2).source == "default"


def test_every_number_is_shown_with_its_unit() -> None:
    rows = list(describe(MEASURED))

    numbers = [name for name in MachineConstants.__slots__ if name.endswith("_s")]
    assert len(rows) == len(numbers)
    assert ("disk, before the first byte", "68.00", "µs") in rows
    assert ("products, quantised weights, many rows", "123.40", "GFLOP/s") in rows


def test_a_cache_directory_that_cannot_be_written_is_one_line(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.write_text("a file, no directory")
    monkeypatch.setattr(sys, "argv", ["kokuban", "bench", "machine"])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    assert "cannot be written" in capsys.readouterr().err
