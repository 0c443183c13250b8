"""`kokuban bench machine`: measures, prints, keeps; and what it keeps is what is found again."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import kokuban.bench.machine
from kokuban.bench.probes import Peaks
from kokuban.cli import app, main
from kokuban.cli.bench_machine import describe, describe_peaks, this_machine
from kokuban.plan.machine import MachineConstants, load_constants
from kokuban.runner.measure import MachineBench

MEASURED = MachineConstants(int8_flops_per_s=123.4e9, disk_latency_s=68e-6, source="measured")
PEAKS = tuple(
    Peaks(
        threads=count,
        dram_bytes_per_s=10e9 * count,
        cache_bytes_per_s=77e9,
        ops_per_s={"fma": 88e9, "int8": 440e9, "int8_widened": 300e9, "bf16": 0.0},
    )
    for count in (1, 3)
)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory of a machine that is measured at once."""

    def measure(bench: MachineBench, progress: object) -> MachineConstants:
        cpu, isa, threads = this_machine(3)
        return replace(MEASURED, cpu=cpu, isa=isa, threads=threads)

    def limits(probes: object, threads: int) -> Peaks:
        return replace(PEAKS[-1], threads=threads)

    monkeypatch.setenv("KOKUBAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(MachineBench, "measure", measure)
    monkeypatch.setattr(kokuban.bench.machine, "measure_peaks", limits)
    return tmp_path / "cache"


def test_what_is_measured_is_kept_for_this_machine_and_these_threads(quick: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "machine", "--threads", "3"])

    assert done.exit_code == 0
    assert "123.40" in done.output
    cpu, isa, _ = this_machine(3)
    known = load_constants(quick, cpu=cpu, isa=isa, threads=3)
    assert (known.source, known.int8_flops_per_s) == ("measured", 123.4e9)
    assert (known.dram_read_bytes_per_s, known.int8_peak_flops_per_s) == (30e9, 440e9)
    assert load_constants(quick, cpu=cpu, isa=isa, threads=2).source == "default"


def test_every_number_is_shown_with_its_unit() -> None:
    rows = list(describe(MEASURED))

    numbers = [name for name in MachineConstants.__slots__ if name.endswith("_s")]
    assert len(rows) == len(numbers)
    assert ("disk, before the first byte", "68.00", "µs") in rows
    assert ("products, quantised weights, many rows", "123.40", "GFLOP/s") in rows


def test_limits_are_shown_by_number_of_threads() -> None:
    assert list(describe_peaks(PEAKS)) == [
        ("main memory, read", ["10.0", "30.0"], "GB/s"),
        ("last cache, read", ["77.0", "77.0"], "GB/s"),
        ("float32 multiply-adds", ["88", "88"], "GFLOP/s"),
        ("int8 dot products, narrow sums", ["440", "440"], "GFLOP/s"),
        ("int8 dot products, sums of 32 bits", ["300", "300"], "GFLOP/s"),
        ("bf16 dot products", ["none", "none"], "GFLOP/s"),
    ]


def test_a_file_holds_limits_and_constants(quick: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"

    done = CliRunner().invoke(app, ["bench", "machine", "--threads", "3", "--json", str(path)])

    assert done.exit_code == 0, done.output
    document = json.loads(path.read_text())
    assert [each["threads"] for each in document["peaks"]] == [1, 2, 3]
    assert document["peaks"][0]["ops_per_s"]["int8_widened"] == 300e9
    assert document["constants"]["int8_flops_per_s"] == 123.4e9
    assert set(document["formulas"]) >= {"dram", "int8", "int8_widened"}
    assert document["facts"]["cpu_flags"]


def test_a_cache_directory_that_cannot_be_written_is_one_line(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick.write_text("a file, no directory")
    monkeypatch.setattr(sys, "argv", ["kokuban", "bench", "machine"])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    assert "cannot be written" in capsys.readouterr().err
