"""Matrix products by packed weights: right, and the same bits however the work is done."""

import functools

import numpy as np
import pytest
from tests.kernels import reference_linear as reference

import kokuban._native as _native
from kokuban.core.errors import ModelError
from kokuban.kernels.linear import (
    WEIGHT_TYPES,
    Floats,
    PackedMatrix,
    linear,
    pack_matrix,
    quantize_rows,
    unpack_matrix,
)

LEVELS = [level for level in (0, 1, 4) if level <= _native.isa_level()]
"""One for each variant that this machine can run: scalar, avx2, avx512vnni."""

BEST = LEVELS[-1]
ROWS = [*range(1, 10), 33, 130]


@functools.lru_cache(maxsize=64)
def packed(name: str, n: int, k: int) -> tuple[PackedMatrix, Floats]:
    """A weight and the float32 matrix that it stands for."""
    raw = reference.stored_matrix(name, n, k)
    return pack_matrix(raw, name, n, k), reference.dequantize(name, raw, n, k)


def random_rows(rows: int, k: int, seed: int = 1) -> Floats:
    """Activations with some large ones, as real models have them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x[:, ::61] *= 8
    return x


def smallest_k(name: str) -> int:
    return max(reference.BLOCKS[name][0], 1)


def relative_error(actual: Floats, x: np.ndarray, weights: Floats) -> float:
    """The largest error over the largest sum of magnitudes, with which rounding errors scale."""
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(weights.T.astype(np.float64))
    return float(np.abs(actual - exact).max() / max(magnitude.max(), 1e-300))


def test_every_type_of_the_reference_can_be_packed() -> None:
    assert set(reference.ALL) == set(WEIGHT_TYPES)


@pytest.mark.parametrize("name", reference.ALL)
@pytest.mark.parametrize("n", [1, 16, 37])
def test_packing_keeps_every_number(name: str, n: int) -> None:
    for k in (smallest_k(name), 3 * smallest_k(name)):
        raw = reference.stored_matrix(name, n, k)

        unpacked = unpack_matrix(pack_matrix(raw, name, n, k))

        assert np.array_equal(reference.dequantize(name, raw, n, k), unpacked)


@pytest.mark.parametrize("name", reference.ALL)
def test_packing_on_threads_gives_the_same_matrix(name: str) -> None:
    raw = reference.stored_matrix(name, 100, 256)

    with_pool = pack_matrix(raw, name, 100, 256, pool=_native.ThreadPool(2))

    assert np.array_equal(reference.dequantize(name, raw, 100, 256), unpack_matrix(with_pool))


@pytest.mark.parametrize("name", reference.ALL)
def test_packed_weights_take_at_most_six_percent_more_than_the_file(name: str) -> None:
    raw = reference.stored_matrix(name, 64, 512)

    assert pack_matrix(raw, name, 64, 512).num_bytes <= 1.06 * raw.nbytes


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", reference.ALL)
def test_products_are_exact_but_for_the_rounding_of_float32_sums(name: str, level: int) -> None:
    shapes = [(rows, 37, 512) for rows in ROWS] + [(1, 1, smallest_k(name)), (5, 16, 4864)]
    for rows, n, k in shapes:
        matrix, weights = packed(name, n, k)
        x = random_rows(rows, k)

        out = linear(matrix, x, isa_cap=level)

        seen = reference.round_activations(x) if name in reference.QUANTIZED else x
        # A sum of k / 16 to k terms, each rounded to 24 bits: errors grow like their square root.
        assert relative_error(out, seen, weights) < 2e-6, (rows, n, k)


@pytest.mark.parametrize("name", reference.QUANTIZED)
def test_rounding_activations_to_eight_bits_costs_below_two_percent(name: str) -> None:
    matrix, weights = packed(name, 64, 1024)
    x = random_rows(16, 1024)

    out = linear(matrix, x)

    exact = x.astype(np.float64) @ weights.T
    assert np.linalg.norm(out - exact) < 0.02 * np.linalg.norm(exact)


@pytest.mark.parametrize("name", reference.ALL)
def test_all_variants_give_the_same_bits(name: str) -> None:
    for rows, n, k in [(rows, 37, 512) for rows in ROWS] + [(3, 16, 4864), (9, 5, 2 * 256)]:
        matrix, _ = packed(name, n, k)
        x = random_rows(rows, k)

        first, *others = [linear(matrix, x, isa_cap=level) for level in LEVELS]

        assert all(np.array_equal(first, other) for other in others), (rows, n, k)


@pytest.mark.parametrize("name", reference.ALL)
def test_a_row_gives_the_same_bits_alone_and_among_others(name: str) -> None:
    matrix, _ = packed(name, 83, 1536)
    x = random_rows(260, 1536)
    alone = np.concatenate([linear(matrix, x[t : t + 1]) for t in range(len(x))])

    for rows in (*ROWS, 260):
        assert np.array_equal(alone[:rows], linear(matrix, x[:rows])), rows


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", reference.ALL)
def test_threads_change_no_bit(name: str, threads: int) -> None:
    matrix, _ = packed(name, 83, 1536)
    pool = _native.ThreadPool(threads)
    for rows in (1, 4, 150):
        x = random_rows(rows, 1536)

        assert np.array_equal(linear(matrix, x), linear(matrix, x, pool=pool)), rows


@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_1", "Q6_K"])
@pytest.mark.parametrize("level", LEVELS)
def test_any_cut_into_tiles_and_rows_gives_the_same_bits(name: str, level: int) -> None:
    matrix, _ = packed(name, 37, 512)
    x = random_rows(21, 512)
    whole = linear(matrix, x, isa_cap=level)
    pieces = np.full_like(whole, np.nan)

    for tile_begin, tile_end in ((0, 2), (2, 3)):
        for row_begin, row_end in ((0, 8), (8, 9), (16, 21)):
            part = (tile_begin, tile_end, row_begin, row_end)
            _native.linear_range(matrix.native, x, pieces, level, part)

    computed = [*range(9), *range(16, 21)]
    assert np.array_equal(whole[computed], pieces[computed])
    assert np.all(np.isnan(pieces[9:16]))


@pytest.mark.parametrize("rows", [1, 9, 300])
@pytest.mark.parametrize("name", ["F32", "Q4_1", "Q4_K"])
def test_the_items_cover_each_output_once(name: str, rows: int) -> None:
    matrix, _ = packed(name, 163, 1536)
    x = random_rows(rows, 1536)
    out = np.zeros((rows, 163), np.float32)

    linear(matrix, x, out=out, add=True, pool=_native.ThreadPool(2))

    assert np.array_equal(linear(matrix, x), out)
    assert _native.linear_items(matrix.native, rows) > 1


def extreme_matrix(name: str, code_byte: int, n: int, k: int) -> np.ndarray:
    """All code bytes alike; scales of 1."""
    elements, size = reference.BLOCKS[name]
    blocks = np.full((n * k // elements, size), code_byte, np.uint8)
    one = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for place in reference.HALVES[name]:
        blocks[:, place : place + 2] = one
    return blocks.reshape(-1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("code_byte", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", reference.QUANTIZED)
def test_the_largest_codes_and_activations_do_not_saturate(
    name: str, code_byte: int, level: int
) -> None:
    n, k = 16, 256
    raw = extreme_matrix(name, code_byte, n, k)
    matrix, weights = pack_matrix(raw, name, n, k), reference.dequantize(name, raw, n, k)
    signs = np.ones((6, k), np.float32)
    signs[1] = -1
    signs[2, ::2] = -1
    signs[3, 128:] = -1
    signs[4, :16] = -1
    x = 127 * signs  # the scale of each group is exactly 1

    for rows in (1, 6):
        out = linear(matrix, x[:rows], isa_cap=level)

        assert relative_error(out, x[:rows], weights) < 1e-6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q6_K"])
def test_a_row_that_is_not_finite_spoils_itself_only(name: str, bad: float, level: int) -> None:
    matrix, _ = packed(name, 37, 512)
    for rows in (3, 12):
        x = random_rows(rows, 512)
        good = linear(matrix, x, isa_cap=level)
        x[1, 300] = bad

        out = linear(matrix, x, isa_cap=level)

        others = [t for t in range(rows) if t != 1]
        assert np.array_equal(good[others], out[others])
        assert not np.isfinite(out[1]).any()


@pytest.mark.parametrize("level", LEVELS)
def test_codes_round_to_nearest_even_and_are_the_same_on_all_levels(level: int) -> None:
    x = random_rows(3, 96)
    x[0, :32] = 0
    x[0, 0] = 127
    x[0, 1:4] = [0.5, 1.5, -2.5]
    x[1, 32:64] = 1e-31
    x[2, :32] = np.float32(3.4e38)

    codes, scales, sums = quantize_rows(x, level)

    groups = x.reshape(3, 3, 32)
    amax = np.abs(groups).max(axis=2)
    amax[1, 1] = 0  # below the smallest amax
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    expected = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    assert np.array_equal(expected.reshape(3, 96), codes)
    assert codes[0, :4].tolist() == [127, 0, 2, -2]
    assert np.array_equal(amax / np.float32(127), scales)
    assert np.array_equal(codes.reshape(3, 6, 16).sum(axis=2, dtype=np.int32), sums)


def test_a_group_that_is_not_finite_gets_a_scale_that_is_not_a_number() -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 40] = np.nan
    x[1, 3] = np.inf

    _, scales, _ = quantize_rows(x)

    assert np.array_equal([[False, True], [True, False]], np.isnan(scales))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", reference.ALL)
def test_zeros_give_zeros(name: str, level: int) -> None:
    matrix, _ = packed(name, 37, 512)

    out = linear(matrix, np.zeros((2, 512), np.float32), isa_cap=level)

    assert np.array_equal(np.zeros((2, 37), np.float32), out)


def test_no_rows_give_no_rows() -> None:
    matrix, _ = packed("Q4_1", 37, 512)

    assert linear(matrix, np.zeros((0, 512), np.float32)).shape == (0, 37)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q4_K"])
@pytest.mark.parametrize("rows", [1, 2, 11])
def test_bias_comes_after_the_sum_and_the_residual_after_the_bias(
    name: str, rows: int, level: int
) -> None:
    matrix, _ = packed(name, 37, 512)
    x, bias = random_rows(rows, 512), random_rows(1, 37, seed=3)[0]
    residual = random_rows(rows, 37, seed=4)
    product = linear(matrix, x, isa_cap=level)

    with_bias = linear(matrix, x, bias=bias, isa_cap=level)
    added = linear(matrix, x, bias=bias, out=residual.copy(), add=True, isa_cap=level)

    assert np.array_equal(product + bias, with_bias)
    assert np.array_equal((product + bias) + residual, added)


@pytest.mark.parametrize("level", LEVELS)
def test_input_and_output_can_be_columns_of_wider_matrices(level: int) -> None:
    matrix, _ = packed("Q4_1", 37, 512)
    wide_x, wide_out = random_rows(9, 600), np.full((9, 50), 7, np.float32)
    x = wide_x[:, 40:552]

    linear(matrix, x, out=wide_out[:, 5:42], isa_cap=level)

    assert np.array_equal(linear(matrix, x.copy()), wide_out[:, 5:42])
    assert np.all(wide_out[:, :5] == 7)
    assert np.all(wide_out[:, 42:] == 7)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("k", [1, 7, 257, 300])
def test_plain_numbers_allow_any_number_of_inputs(name: str, k: int, level: int) -> None:
    matrix, weights = packed(name, 19, k)
    for rows in (1, 2, 4, 17):
        x = random_rows(rows, k)

        assert relative_error(linear(matrix, x, isa_cap=level), x, weights) < 1e-6


def test_float32_sums_run_in_ascending_order_with_one_rounding_each() -> None:
    matrix, weights = packed("F32", 3, 40)
    x = random_rows(2, 40)
    expected = np.zeros((2, 3), np.float32)
    for i in range(40):  # a product of two float32 is exact in float64: one rounding, as FMA's
        exact = expected.astype(np.float64) + x[:, i : i + 1].astype(np.float64) * weights[:, i]
        expected = exact.astype(np.float32)

    assert np.allclose(expected, linear(matrix, x), rtol=0, atol=1e-7 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("name", "k", "text"),
    [
        ("Q4_0", 48, r"blk\.0\.ffn_up: Q4_0 stores rows in blocks of 32 elements"),
        ("Q6_K", 128, r"blk\.0\.ffn_up: Q6_K stores rows in blocks of 256 elements"),
        ("IQ4_NL", 32, r"blk\.0\.ffn_up: no kernel takes the type IQ4_NL; there are F32, F16"),
        ("F32", 2, r"blk\.0\.ffn_up: F32 \[1, 2\] takes 8 bytes, but there are 18"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(name: str, k: int, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        pack_matrix(np.zeros(18, np.uint8), name, 1, k, name="blk.0.ffn_up")


def test_shapes_and_dtypes_that_do_not_fit_are_refused() -> None:
    matrix, _ = packed("F32", 3, 40)
    x = random_rows(2, 40)

    with pytest.raises(ValueError, match=r"x has shape \(2, 39\); this weight takes \[rows, 40\]"):
        linear(matrix, x[:, :39])
    with pytest.raises(ValueError, match=r"out has shape \(2, 4\); it must be \(2, 3\)"):
        linear(matrix, x, out=np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match="x is float64; it must be float32"):
        linear(matrix, x.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have its columns side by side"):
        linear(matrix, np.asfortranarray(x))
    with pytest.raises(ValueError, match="add=True needs out"):
        linear(matrix, x, add=True)
