"""Rotary embedding in both styles, whole and partial."""

import numpy as np
import pytest
from tests.kernels import reference

from kokuban.kernels.rope import rope, rope_table

POSITIONS = np.array([0, 1, 119, 4095], np.int32)


def frequencies(rotary_dim: int, theta: float = 10_000.0) -> list[float]:
    return [theta ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim"),
    [(2, 2), (8, 8), (34, 34), (64, 64), (64, 16), (80, 32), (96, 72), (128, 128), (256, 256)],
)
def test_pairs_turn_by_position_times_frequency(
    head_dim: int, rotary_dim: int, interleaved: bool
) -> None:
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((4, 3 * head_dim + 7), np.float32)[:, 2 : 2 + 3 * head_dim]
    table = rope_table(frequencies(rotary_dim), 4096)
    exact = reference.rope(
        x,
        POSITIONS[:, None] * np.array(frequencies(rotary_dim)),
        num_heads=3,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
    )
    outs = []
    for variant in reference.VARIANTS:
        out = x.copy()
        rope(out, table, POSITIONS, num_heads=3, interleaved=interleaved, isa_cap=variant)
        outs.append(out)

    # Cosine and sine, product and sum are each rounded once: 4 units of 6e-8 of values below 8.
    np.testing.assert_allclose(outs[0], exact, rtol=0, atol=1e-6)
    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_position_0_turns_nothing_and_the_rest_of_a_head_stays(variant: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 2 * 64), np.float32)
    out = x.copy()

    table = rope_table(frequencies(16), 4096)
    rope(out, table, POSITIONS, num_heads=2, interleaved=False, rows=(0, 3), isa_cap=variant)

    heads, before = out.reshape(4, 2, 64), x.reshape(4, 2, 64)
    assert np.array_equal(heads[0], before[0])
    assert np.array_equal(heads[:, :, 16:], before[:, :, 16:])
    assert np.array_equal(heads[3], before[3])
    assert not (heads[1:3, :, :16] == before[1:3, :, :16]).all()


def test_a_long_context_keeps_its_angles() -> None:
    table = rope_table([0.7], 131_073, magnitude=1.5)

    assert abs(table[131_072, 0, 0] - 1.5 * np.cos(131_072 * 0.7)) < 1e-7
    assert abs(table[131_072, 1, 0] - 1.5 * np.sin(131_072 * 0.7)) < 1e-7


def test_positions_outside_the_table_are_refused() -> None:
    x = np.zeros((2, 8), np.float32)
    table = rope_table(frequencies(8), 16)
    with pytest.raises(ValueError, match=r"positions\[1\] = 16 is not from 0 to 15"):
        rope(x, table, np.array([0, 16], np.int32), num_heads=1, interleaved=False)
    with pytest.raises(ValueError, match="table rotates 8 columns of heads of 4"):
        rope(x, table, np.array([0, 1], np.int32), num_heads=2, interleaved=False)
