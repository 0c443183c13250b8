"""Probes of the machine's limits: they do the work that they claim. No test times anything."""

from typing import Any

import numpy as np
import pytest

import kokuban._native as _native
from kokuban.kernels.peak import PROBES, READ_STEP, Probe, huge_pages, read_memory, run_probe

LEVELS = [level for level in (0, 1, 4) if level <= _native.isa_level()]
POOLS = [None, _native.ThreadPool(2)]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("probe", PROBES)
def test_the_sum_of_ones_is_the_number_of_products(probe: Probe, level: int, pool: Any) -> None:
    one, many = (run_probe(probe, items, isa_cap=level, pool=pool) for items in (1, 7))

    assert one.total == one.operations / 2
    assert many.total == many.operations / 2
    assert many.operations == 7 * one.operations


@pytest.mark.parametrize("level", LEVELS)
def test_only_the_bf16_probe_may_be_missing(level: int) -> None:
    done = {probe: run_probe(probe, 1, isa_cap=level).operations for probe in PROBES}

    assert all(done[probe] > 0 for probe in PROBES if probe != "bf16")
    assert level >= 4 or done["bf16"] == 0


def test_no_items_do_nothing() -> None:
    assert run_probe("fma", 0).operations == 0


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("steps", [0, 1, 3, 256, 1000])
def test_reading_adds_up_every_word_once_a_pass(steps: int, level: int, pool: Any) -> None:
    words = np.random.default_rng(0).integers(0, 2**64, steps * READ_STEP // 8, np.uint64)
    expected = int(words.sum(dtype=np.uint64))

    total = read_memory(words.view(np.uint8), 3, isa_cap=level, pool=pool)

    assert total == 3 * expected % 2**64


def test_huge_pages_are_written_and_stand_at_a_multiple_of_their_size() -> None:
    memory = huge_pages(5 << 20)

    assert memory.ctypes.data % (2 << 20) == 0
    assert memory.shape == (5 << 20,)
    assert bool((memory == 1).all())


def test_what_no_probe_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="probe='fp8' is none of fma, int8"):
        run_probe("fp8", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="items=-1"):
        run_probe("fma", -1)
    with pytest.raises(ValueError, match="memory has 8 bytes; they must be a multiple of 512"):
        read_memory(np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="passes=-1"):
        read_memory(np.zeros(512, np.uint8), -1)
