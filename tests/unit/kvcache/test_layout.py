"""Addresses in a KV block, packing and its inverse, and the memory of the pool."""

from itertools import product

import numpy as np
import pytest

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.errors import ConfigError
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

WORDS: dict[str, type[np.generic]] = {"bf16": np.uint16, "fp16": np.uint16, "fp32": np.uint32}


def small(dtype: KvDtype = "bf16", block_size: int = 16) -> KvLayout:
    return KvLayout(
        block_size=block_size, num_kv_heads=3, head_dim=8, layers_per_group=2, dtype=dtype
    )


def numbered(layout: KvLayout) -> tuple[np.ndarray, np.ndarray]:
    """K and V in which every element is another small integer, exact in 16 bits of fp16."""
    shape = (2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    k = np.arange(np.prod(shape)).reshape(shape) % 251
    return k.astype(np.float32), -k.astype(np.float32)


def test_bytes_of_a_block_are_those_of_its_elements() -> None:
    layout = KvLayout(block_size=16, num_kv_heads=3, head_dim=64, layers_per_group=30, dtype="bf16")

    assert layout.bytes_per_token == 30 * 2 * 3 * 64 * 2 == 23_040
    assert layout.bytes_per_block == 368_640
    assert layout.layout_id == "kv1-bf16-s16-h3-d64-l30"


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_every_element_has_an_address_of_its_own(dtype: KvDtype, block_size: int) -> None:
    layout = small(dtype, block_size)
    elements = product(range(2), range(3), range(block_size), range(8))
    offsets = [at(*e) for e in elements for at in (layout.k_offset, layout.v_offset)]

    assert sorted(offsets) == list(range(0, layout.bytes_per_block, layout.element_bytes))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_pack_puts_each_element_at_its_address(dtype: KvDtype, block_size: int) -> None:
    layout = small(dtype, block_size)
    k, v = numbered(layout)

    block = layout.pack(k, v)
    got_k, got_v = layout.unpack(block)

    assert np.array_equal(got_k, k)
    assert np.array_equal(got_v, v)
    for element in [(0, 0, 0, 0), (1, 2, 15, 7), (1, 1, block_size - 1, 3), (0, 2, 5, 6)]:
        for offset, values in ((layout.k_offset, k), (layout.v_offset, v)):
            word = block[offset(*element) :][: layout.element_bytes].view(WORDS[dtype])[0]
            expected = layout.pack(np.full_like(k, values[element]), v).view(WORDS[dtype])[0]
            assert word == expected


def test_pack_rounds_to_nearest_even_and_keeps_nan() -> None:
    layout = small("bf16")
    k = np.ones((2, 3, 16, 8), np.float32)
    k[0, 0, 0, :4] = 1.00390625, 1.01171875, np.inf, np.nan

    got, _ = layout.unpack(layout.pack(k, k))

    assert got[0, 0, 0, :3].tolist() == [1.0, 1.015625, np.inf]
    assert np.isnan(got[0, 0, 0, 3])


def test_numbers_that_kernels_cannot_serve_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError, match=r"block_size=24 .* head_dim=20 .* num_kv_heads=0"):
        KvLayout(block_size=24, num_kv_heads=0, head_dim=20, layers_per_group=1, dtype="bf16")
    with pytest.raises(ValueError, match=r"block is uint8 \(5,\)"):
        small().unpack(np.zeros(5, np.uint8))
    with pytest.raises(ValueError, match=r"k is \(1,\)"):
        small().pack(np.zeros(1, np.float32), np.zeros(1, np.float32))


def test_a_copied_block_is_equal_in_every_byte_and_alone_in_changing() -> None:
    storage = KvStorage(small(), 3)
    storage.block(0)[:] = np.arange(storage.layout.bytes_per_block) % 255
    storage.block(2)[:] = 7

    storage.copy_block(0, 1)

    assert np.array_equal(storage.block(1), storage.block(0))
    assert (storage.block(2) == 7).all()
    assert storage.blocks.ctypes.data % 64 == 0


def test_populating_pages_keeps_what_was_written() -> None:
    storage = KvStorage(small(), 2000)
    storage.block(1234)[:] = 9

    storage.populate().join()

    assert (storage.block(1234) == 9).all()
    assert (storage.block(1233) == 0).all()


def test_blocks_outside_the_pool_and_pools_without_blocks_are_refused() -> None:
    with pytest.raises(IndexError, match="block 3 is not within the pool's 3"):
        KvStorage(small(), 3).copy_block(0, 3)
    with pytest.raises(IndexError, match="block -1 "):
        KvStorage(small(), 3).block(-1)
    with pytest.raises(ConfigError, match="num_blocks=0 is below 1"):
        KvStorage(small(), 0)
