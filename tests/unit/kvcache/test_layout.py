"""Addresses in a KV block, packing and its inverse, and the memory of the pool."""

from itertools import product

import numpy as np
import pytest

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.errors import ConfigError
from kokuban.kvcache.kv_codes import WORDS as WORDS_OF_CODES
from kokuban.kvcache.kv_codes import decode, quantize, rotate, rotation_size
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

WORDS: dict[str, type[np.generic]] = {
    "bf16": np.uint16,
    "fp16": np.uint16,
    "fp32": np.uint32,
    "int8": np.uint8,
    "fp8_e4m3": np.uint8,
}
SCALED: tuple[KvDtype, ...] = ("int8", "fp8_e4m3")


def small(dtype: KvDtype = "bf16", block_size: int = 16) -> KvLayout:
    return KvLayout(
        block_size=block_size, num_kv_heads=3, head_dim=8, layers_per_group=2, dtype=dtype
    )


def numbered(layout: KvLayout) -> tuple[np.ndarray, np.ndarray]:
    """K and V in which neighbours differ and every element is exact in the layout's dtype.

    That is small integers, or e4m3's powers of two; each row's largest element makes its scale a
    power of two.
    """
    shape = (2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    k = np.arange(np.prod(shape)).reshape(shape) % 251
    if layout.dtype == "int8":
        k, k[..., 0] = k % 127, 127
    if layout.dtype == "fp8_e4m3":
        k = 2.0 ** (k % 13 - 4)
        k[..., 0] = 448
    return k.astype(np.float32), -k.astype(np.float32)


def test_bytes_of_a_block_are_those_of_its_elements() -> None:
    layout = KvLayout(block_size=16, num_kv_heads=3, head_dim=64, layers_per_group=30, dtype="bf16")

    assert layout.bytes_per_token == 30 * 2 * 3 * 64 * 2 == 23_040
    assert layout.bytes_per_block == 368_640
    assert layout.layout_id == "kv1-bf16-s16-h3-d64-l30"


@pytest.mark.parametrize("dtype", SCALED)
def test_eight_bits_and_a_scale_take_little_more_than_half_of_bf16(dtype: KvDtype) -> None:
    """Bytes per element are (D + 4) / D: one float32 for each token, head and side."""

    def bytes_per_token(kind: KvDtype, head_dim: int) -> int:
        return KvLayout(
            block_size=16, num_kv_heads=8, head_dim=head_dim, layers_per_group=32, dtype=kind
        ).bytes_per_token

    for head_dim, share in ((64, 0.53125), (128, 0.515625), (256, 0.5078125)):
        assert bytes_per_token(dtype, head_dim) == share * bytes_per_token("bf16", head_dim)


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_every_element_has_an_address_of_its_own(dtype: KvDtype, block_size: int) -> None:
    layout = small(dtype, block_size)
    elements = product(range(2), range(3), range(block_size), range(8))
    offsets = [at(*e) for e in elements for at in (layout.k_offset, layout.v_offset)]
    if layout.scaled:
        tokens = product(range(2), range(3), range(block_size))
        scales = [at(*t) for t in tokens for at in (layout.k_scale_offset, layout.v_scale_offset)]
        assert not any(scale % 4 for scale in scales)
        offsets += [scale + i for scale in scales for i in range(4)]

    assert sorted(offsets) == list(range(0, layout.bytes_per_block, layout.element_bytes))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_pack_puts_each_element_at_its_address(dtype: KvDtype, block_size: int) -> None:
    layout = small(dtype, block_size)
    k, v = numbered(layout)

    block = layout.pack(rotate(k) if layout.rotated else k, v)
    got_k, got_v = layout.unpack(block)

    assert np.array_equal(rotate(got_k) / 8 if layout.rotated else got_k, k)
    assert np.array_equal(got_v, v)
    for element in [(0, 0, 0, 0), (1, 2, 15, 7), (1, 1, block_size - 1, 3), (0, 2, 5, 6)]:
        for offset, values in ((layout.k_offset, k), (layout.v_offset, v)):
            word = block[offset(*element) :][: layout.element_bytes].view(WORDS[dtype])[0]
            assert word == word_of(values[element], dtype)
        if layout.scaled:
            for at in (layout.k_scale_offset, layout.v_scale_offset):
                assert block[at(*element[:3]) :][:4].view(np.float32)[0] == 1


def word_of(value: float, dtype: KvDtype) -> int:
    """The code of a value that is exact in a dtype, by the dtype's definition."""
    if dtype == "int8":
        return int(value) & 0xFF
    if dtype == "fp8_e4m3":
        mantissa, exponent = np.frexp(abs(value))
        code = int(exponent + 6) << 3 | int(mantissa * 16) & 7
        return code | (128 if value < 0 else 0)
    if dtype == "bf16":
        return int(np.float32(value).view(np.uint32) >> 16)
    kind = np.float16 if dtype == "fp16" else np.float32
    return int(kind(value).view(WORDS[dtype]))


@pytest.mark.parametrize("head_dim", [8, 24, 64, 96, 256])
def test_a_rotation_keeps_dot_products_and_spreads_what_stands_out(head_dim: int) -> None:
    size = rotation_size(head_dim)
    assert head_dim % size == 0
    assert (head_dim // size) % 2 == 1
    q, k = np.random.default_rng(5).standard_normal((2, 40, head_dim)).astype(np.float32)
    k[:, 3] = 100

    turned = rotate(k / np.float32(size))

    np.testing.assert_allclose(rotate(turned), k, rtol=0, atol=1e-4)
    found = (rotate(q) * turned).sum(axis=1)
    np.testing.assert_allclose(found, (q * k).sum(axis=1), rtol=0, atol=1e-3)
    share = 100 / size
    assert (np.abs(turned[:, :size]) > 0.5 * share).mean() > 0.9 if size > 8 else True
    norm = np.sqrt(size) * np.abs(turned).max()
    assert norm < 1.3 * 100 / np.sqrt(size) + 5


def test_e4m3_has_no_infinities_and_its_codes_ascend() -> None:
    """The 127 values from 0 to 448 against the definition, at the borders of each range."""
    codes = np.arange(256).astype(np.uint8)
    values = decode(codes, "fp8_e4m3")

    assert values[[0, 1, 7, 8, 0x38, 0x7E]].tolist() == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448]
    assert (np.diff(values[:127]) > 0).all()
    assert np.isnan(values[[127, 255]]).all()
    assert np.array_equal(values[128:255], -values[:127])
    assert np.signbit(values[128])


@pytest.mark.parametrize("dtype", SCALED)
def test_a_row_is_rounded_to_the_nearest_code_of_its_own_scale(dtype: KvDtype) -> None:
    """By trying all codes: none is nearer, and of two equally near the even one was taken."""
    rows = np.random.default_rng(2).standard_normal((50, 24)).astype(np.float32)
    rows *= (10.0 ** np.arange(-25, 25))[:, None].astype(np.float32)
    rows[0, :6] = np.array([127, 0.5, 1.5, -2.5, 3.4999, 126.5], np.float32)  # int8: scale 1.
    rows[0, 6:] = 0
    rows[1, :6] = np.array([448, 17, -19, 2**-10, 3 * 2**-10, 1], np.float32)  # e4m3: scale 1.
    rows[1, 6:] = 0
    every = decode(np.arange(256).astype(np.uint8).view(WORDS_OF_CODES[dtype]), dtype)

    codes, scales = quantize(rows, dtype)

    largest = 127 if dtype == "int8" else 448
    assert np.array_equal(scales, np.abs(rows).max(axis=1) / np.float32(largest))
    exact = rows.astype(np.float64) / scales[:, None]
    errors = np.abs(decode(codes, dtype) - exact)
    usable = every[np.isfinite(every)].astype(np.float64)
    best = np.abs(usable - exact[..., None]).min(axis=-1)
    assert (errors <= best + 1e-7 * np.abs(exact)).all()
    row = decode(codes, dtype)[0 if dtype == "int8" else 1, :6].tolist()
    assert row == ([127, 0, 2, -2, 3, 126] if dtype == "int8" else [448, 16, -20, 0, 2**-8, 1])


@pytest.mark.parametrize("dtype", SCALED)
def test_no_scale_vanishes_and_rows_that_are_not_finite_are_marked_whole(dtype: KvDtype) -> None:
    """Bugbank B98: scales of rows of zeros and of denormals, infinities, NaN, and the largest."""
    rows = np.zeros((6, 8), np.float32)
    rows[1] = 1e-45
    rows[2, 3] = -1e-38
    rows[3, 0] = np.inf
    rows[4, 7] = np.nan
    rows[5, 2:] = 3e38

    codes, scales = quantize(rows, dtype)
    values = decode(codes, dtype) * scales[:, None]

    assert (scales[[0, 1, 2, 5]] >= 2**-126).all()
    assert np.isnan(scales[3:5]).all()
    assert (codes[3:5] == 0).all()
    assert np.array_equal(values[0], np.zeros(8))
    assert np.abs(values[1:3] - rows[1:3]).max() < 2**-126
    np.testing.assert_allclose(values[5], rows[5], rtol=1e-6)


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


def test_populating_that_waits_does_not_hold_up_the_end() -> None:
    storage = KvStorage(small(), 3)

    thread = storage.populate(after_s=3600)
    storage.close()

    assert not thread.is_alive()


def test_blocks_outside_the_pool_and_pools_without_blocks_are_refused() -> None:
    with pytest.raises(IndexError, match="block 3 is not within the pool's 3"):
        KvStorage(small(), 3).copy_block(0, 3)
    with pytest.raises(IndexError, match="block -1 "):
        KvStorage(small(), 3).block(-1)
    with pytest.raises(ConfigError, match="num_blocks=0 is below 1"):
        KvStorage(small(), 0)
