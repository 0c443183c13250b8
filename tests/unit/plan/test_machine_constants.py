"""Measured numbers survive a round trip, and nothing else is taken for them."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kokuban.plan.machine import (
    MachineConstants,
    default_constants,
    load_constants,
    machine_file,
    save_constants,
)

MEASURED = MachineConstants(
    int8_flops_per_s=123e9,
    disk_latency_s=0.0,
    source="measured",
    cpu="A CPU",
    isa="avx2",
    threads=2,
    date="2026-11-29",
)
GUESS = default_constants(cpu="A CPU", isa="avx2", threads=2)


def load(directory: Path) -> MachineConstants:
    return load_constants(directory, cpu="A CPU", isa="avx2", threads=2)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = save_constants(tmp_path / "cache", MEASURED)

    assert load(tmp_path / "cache") == MEASURED
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [path.name]


def test_a_second_measurement_replaces_the_first(tmp_path: Path) -> None:
    save_constants(tmp_path, MEASURED)
    save_constants(tmp_path, replace(MEASURED, int8_flops_per_s=5e9))

    assert load(tmp_path).int8_flops_per_s == 5e9


@pytest.mark.parametrize(
    "other", [{"cpu": "Another"}, {"isa": "avx512"}, {"threads": 3}], ids=["cpu", "isa", "threads"]
)
def test_each_cpu_instruction_set_and_number_of_threads_has_its_own_file(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    save_constants(tmp_path, replace(MEASURED, **other))

    assert load(tmp_path) == GUESS


def test_without_a_measurement_there_is_a_guess_and_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path) == GUESS

    assert GUESS.source == "default"
    assert caplog.records == []


def test_a_guess_grows_with_the_threads_and_memory_does_so_up_to_four() -> None:
    one, eight = (default_constants(cpu="", isa="", threads=count) for count in (1, 8))

    assert eight.int8_flops_per_s == 8 * one.int8_flops_per_s
    assert eight.weight_bytes_per_s == 4 * one.weight_bytes_per_s
    assert eight.copy_bytes_per_s == one.copy_bytes_per_s


def changed(**values: Any) -> str:
    known = {"version": 2} | {name: getattr(MEASURED, name) for name in MEASURED.__slots__}
    return json.dumps(known | values)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        (changed()[:-20], "Expecting|Unterminated"),
        ("[]", "no JSON object"),
        ('{"version": 2, "threads": 2}', "it lacks attention_flops_per_s, cache_read_bytes_per_s"),
        ("[" * 100_000, "recursion"),
        (changed(version=1), "version 1, not 2"),
        (changed(int8_flops_per_s=0), "int8_flops_per_s=0 is out of range"),
        (changed(kv_bytes_per_s=-1.0), "kv_bytes_per_s=-1.0 is out of range"),
        (changed(step_overhead_s=-1e-9), "step_overhead_s=-1e-09 is out of range"),
        (changed(copy_bytes_per_s=float("inf")), "copy_bytes_per_s=inf is out of range"),
        (changed(copy_bytes_per_s=float("nan")), "copy_bytes_per_s=nan is out of range"),
        (changed(copy_bytes_per_s="fast"), "copy_bytes_per_s is 'fast', no number"),
        (changed(copy_bytes_per_s=True), "copy_bytes_per_s is True, no number"),
        (changed(flux=1), "flux"),
        (changed(threads="2"), "threads is a number"),
        (changed(cpu=5), "cpu, isa, date and source are texts"),
        (changed(source="dreamt"), "source='dreamt' is none of"),
        (changed(cpu="Another CPU"), "it is about Another CPU, avx2, 2 threads"),
    ],
)
def test_a_damaged_or_foreign_file_is_a_warning_and_a_guess(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, problem: str
) -> None:
    machine_file(tmp_path, cpu="A CPU", isa="avx2", threads=2).write_text(text)

    with caplog.at_level(logging.WARNING):
        assert load(tmp_path) == GUESS

    [record] = caplog.records
    assert re.search(problem, record.getMessage())
    assert "kokuban bench machine" in record.getMessage()


def test_bytes_that_are_no_text_are_a_warning_and_a_guess(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine_file(tmp_path, cpu="A CPU", isa="avx2", threads=2).write_bytes(b"\xff\xfe{")

    with caplog.at_level(logging.WARNING):
        assert load(tmp_path) == GUESS

    assert len(caplog.records) == 1


def test_a_measurement_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_constants(tmp_path, MEASURED)
    monkeypatch.setattr("os.fsync", _full_disk)

    with pytest.raises(OSError, match="no space"):
        save_constants(tmp_path, replace(MEASURED, int8_flops_per_s=5e9))

    assert load(tmp_path) == MEASURED
    assert len(list(tmp_path.iterdir())) == 1


def _full_disk(descriptor: int) -> None:
    raise OSError(f"no space for {descriptor}")
