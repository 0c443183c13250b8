"""K and V of tokens reach their slots, and nothing else is touched."""

from itertools import product

import numpy as np
import pytest
from tests.kernels import reference

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.kernels.kv_write import kv_write, native_layout_bytes
from kokuban.kvcache.kv_codes import decode
from kokuban.kvcache.layout import KvLayout

BLOCKS, LAYER = 5, 1


def layout_of(dtype: KvDtype, head_dim: int, block_size: int = 16) -> KvLayout:
    return KvLayout(
        block_size=block_size, num_kv_heads=3, head_dim=head_dim, layers_per_group=2, dtype=dtype
    )


def rows(count: int, cols: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, cols + 3), np.float32)[:, 1:-2]


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 64])
@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_tokens_lie_where_the_layout_says(
    variant: int, dtype: KvDtype, head_dim: int, block_size: int
) -> None:
    layout = layout_of(dtype, head_dim, block_size)
    slots = np.random.default_rng(1).permutation(BLOCKS * block_size)[: 3 * block_size]
    k, v = rows(len(slots), 3 * head_dim), -rows(len(slots), 3 * head_dim)
    nothing = np.zeros((2, 3, block_size, head_dim), np.float32)
    pool = np.tile(layout.pack(nothing, nothing), (BLOCKS, 1))
    expected = np.zeros((2, BLOCKS, 2, 3, block_size, head_dim), np.float32)
    for side, values in enumerate((k, v)):
        for slot, row in zip(slots, values, strict=True):
            at = slot // block_size, LAYER, slice(None), slot % block_size
            expected[side][at] = row.reshape(3, head_dim)

    kv_write(k, v, slots, pool, LAYER, layout, isa_cap=variant)

    for block in range(BLOCKS):
        assert np.array_equal(pool[block], layout.pack(expected[0, block], expected[1, block]))


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_a_token_writes_its_own_elements_only_and_ranges_add_up(
    variant: int, dtype: KvDtype
) -> None:
    layout = layout_of(dtype, 24)
    k, v = rows(9, 72), rows(9, 72)
    slots = np.array([0, 1, 17, 16, 79, 40, 41, 42, 43], np.int64)
    whole = np.full((BLOCKS, layout.bytes_per_block), 0xA5, np.uint8)
    parts = whole.copy()

    kv_write(k, v, slots, whole, LAYER, layout, isa_cap=variant)
    for part in ((4, 9), (0, 1), (1, 4)):
        kv_write(k, v, slots, parts, LAYER, layout, rows=part, isa_cap=variant)

    assert np.array_equal(whole, parts)
    theirs = np.zeros(whole.shape, bool)
    for slot, head, d in product(slots, range(3), range(24)):
        for offset in (layout.k_offset, layout.v_offset):
            start = offset(LAYER, head, int(slot) % 16, d)
            theirs[slot // 16, start : start + layout.element_bytes] = True
        for scale_offset in (layout.k_scale_offset, layout.v_scale_offset):
            if layout.scaled:
                start = scale_offset(LAYER, head, int(slot) % 16)
                theirs[slot // 16, start : start + 4] = True
    assert (whole[~theirs] == 0xA5).all()
    assert (whole[theirs] != 0xA5).mean() > 0.9


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_quantised_rows_of_every_size_are_those_of_the_layout(variant: int, dtype: KvDtype) -> None:
    """Byte for byte: magnitudes from denormals to the largest, ties, zeros, and what is not finite.

    Bugbank B98: rows of zeros and of denormals have scales that can be divided by.
    """
    layout = layout_of(dtype, 24, 64)
    rng = np.random.default_rng(8)
    k = rng.standard_normal((64, 72)).astype(np.float32)
    k *= (10.0 ** rng.integers(-44, 38, (64, 1))).astype(np.float32)
    k[0], k[1, :24], k[2], k[3, 24:] = 0, -0.0, 1e-45, 3e38
    k[4, 5], k[5, 30], k[6, 71] = np.nan, np.inf, -np.inf
    k[7, :24] = np.arange(24) / 2 - 6
    k[7, 0] = 127 if dtype == "int8" else 448
    v = np.roll(k, 9, axis=0) * np.float32(-0.25)
    pool = np.zeros((1, layout.bytes_per_block), np.uint8)

    kv_write(k, v, np.arange(64), pool, LAYER, layout, isa_cap=variant)

    expected = np.zeros((2, 2, 3, 64, 24), np.float32)
    for side, values in enumerate((k, v)):
        expected[side, LAYER] = values.reshape(64, 3, 24).swapaxes(0, 1)
    packed = layout.pack(expected[0], expected[1])
    half = layout.layer_bytes
    assert np.array_equal(pool[0, half:], packed[half:])
    kept, _ = layout.unpack(pool[0])
    assert not kept[LAYER, :, 0].any()
    assert np.isnan(kept[LAYER, [0, 1, 2], [4, 5, 6]]).all()
    assert np.isfinite(kept[LAYER, [1, 0, 1], [4, 5, 6]]).all()


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_int8_alone_leaves_an_offset_out_of_k(variant: int, dtype: KvDtype) -> None:
    layout = layout_of(dtype, 24)
    k, v, offset = rows(4, 72), rows(5, 72)[:4], np.ascontiguousarray(rows(1, 72)[0] * 100)
    pools = [np.zeros((1, layout.bytes_per_block), np.uint8) for _ in range(3)]
    slots = np.arange(4)

    kv_write(k + offset, v, slots, pools[0], LAYER, layout, k_offset=offset, isa_cap=variant)
    kv_write((k + offset) - offset, v, slots, pools[1], LAYER, layout, isa_cap=variant)
    kv_write(k + offset, v, slots, pools[2], LAYER, layout, isa_cap=variant)

    assert np.array_equal(pools[0], pools[1 if dtype == "int8" else 2])
    assert not np.array_equal(pools[1], pools[2])


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_every_e4m3_code_and_every_tie_between_two_is_written_exactly(variant: int) -> None:
    """With 448 in each row its scale is 1, so that values are their own codes."""
    layout = layout_of("fp8_e4m3", 256)
    values = decode(np.arange(127).astype(np.uint8), "fp8_e4m3")
    ties = (values[1:] + values[:-1]) / 2
    row = np.concatenate([values, -values, [0.0, 448.0]]).astype(np.float32)
    between = np.concatenate([ties, -ties, [448.0] * 4]).astype(np.float32)
    k = np.tile(np.stack([row, between]), (1, 3))
    pool = np.zeros((1, layout.bytes_per_block), np.uint8)

    kv_write(k, k, np.arange(2), pool, LAYER, layout, isa_cap=variant)

    kept, _ = layout.unpack(pool[0])
    assert np.array_equal(kept[LAYER, 0, 0], row)
    even = values[(np.arange(126) + 1) // 2 * 2]
    assert np.array_equal(kept[LAYER, 0, 1, :252], np.concatenate([even, -even]))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_values_that_are_not_finite_stay_so_on_every_variant(dtype: KvDtype) -> None:
    layout = layout_of(dtype, 8)
    k = np.ones((1, 24), np.float32)
    k[0, :6] = np.nan, np.inf, -np.inf, -0.0, 1e-45, 70000
    k.view(np.uint32)[0, 6] = 0x7FFFFFFF  # A NaN whose upper half alone would not say so.
    pools = []
    for variant in reference.VARIANTS:
        pool = np.zeros((1, layout.bytes_per_block), np.uint8)
        kv_write(k, k, np.zeros(1, np.int64), pool, LAYER, layout, isa_cap=variant)
        pools.append(pool)
        _, v = layout.unpack(pool[0])
        assert np.isnan(v[LAYER, 0, 0, [0, 6]]).all()
        assert v[LAYER, 0, 0, 1:4].tolist() == [np.inf, -np.inf, 0]
        assert np.isinf(v[LAYER, 0, 0, 5]) == (dtype == "fp16")  # Above its 65504.

    if dtype == "bf16":  # Elsewhere the payload of a NaN is the hardware's own.
        assert all(np.array_equal(pools[0], pool) for pool in pools)


def test_native_code_has_the_same_sizes() -> None:
    for dtype in KV_DTYPES:
        layout = layout_of(dtype, 24, 32)
        assert native_layout_bytes(layout) == {
            "tile": layout.tile_bytes,
            "elements": layout.elements_bytes,
            "head": layout.head_bytes,
            "side": layout.side_bytes,
            "layer": layout.layer_bytes,
            "block": layout.bytes_per_block,
        }


def test_slots_layers_and_pools_that_do_not_fit_are_refused() -> None:
    layout = layout_of("bf16", 8)
    pool, x = np.zeros((2, layout.bytes_per_block), np.uint8), np.zeros((1, 24), np.float32)
    with pytest.raises(ValueError, match=r"slots\[0\] = 32 is not from 0 to 31"):
        kv_write(x, x, np.array([32]), pool, 0, layout)
    with pytest.raises(ValueError, match="layer=2 is not within the group's 2"):
        kv_write(x, x, np.array([0]), pool, 2, layout)
    with pytest.raises(ValueError, match="pool has blocks of 9 bytes"):
        kv_write(x, x, np.array([0]), np.zeros((2, 9), np.uint8), 0, layout)
