"""What a Program builder hands out: shared buffers, declared weights, equal KV groups."""

from dataclasses import replace

import pytest
from tools.tiny_configs import tiny_config

from kokuban.core.errors import ModelError
from kokuban.program.builder import ProgramBuilder, kv_groups, layer_window
from kokuban.program.ops import Value
from kokuban.program.program import KvGroup, WeightSpec


def test_a_value_asked_for_twice_is_one_buffer() -> None:
    builder = ProgramBuilder(tiny_config("llama"))

    assert builder.value("qkv", 384) is builder.value("qkv", 384)


def test_a_buffer_cannot_have_two_sizes() -> None:
    builder = ProgramBuilder(tiny_config("llama"))
    builder.value("qkv", 384)

    with pytest.raises(ModelError, match=r"'qkv' is T × 384 and cannot also be T × 385"):
        builder.value("qkv", 385)


def test_a_weight_cannot_have_two_shapes() -> None:
    builder = ProgramBuilder(tiny_config("llama"))
    x, out = builder.value("x", 256), builder.value("out", 8)
    builder.linear(x, [("w.weight", 8)], out)

    with pytest.raises(ModelError, match=r"'w.weight' is used as \[8, 256\] and as \[8, 8\]"):
        builder.linear(out, [("w.weight", 8)], out)


def test_columns_of_columns_refer_to_the_outermost_value() -> None:
    qkv = Value("qkv", "T", 384)
    qk = qkv.columns("qk", 32, 320)

    assert qk.columns("k", 256, 64) == Value("k", "T", 64, qkv, 288)


def test_a_tied_embedding_is_read_by_rows_and_as_a_matrix() -> None:
    builder = ProgramBuilder(replace(tiny_config("llama"), tied_embeddings=True))

    program = builder.finish(builder.embed())

    assert program.weights == {
        "token_embd.weight": WeightSpec((320, 256), embedding=True, matmul=True),
        "output_norm.weight": WeightSpec((256,)),
    }


def test_layers_alike_form_one_group() -> None:
    assert kv_groups(tiny_config("llama")) == (KvGroup((0, 1, 2)),)


def test_layers_that_all_have_the_window_form_one_group() -> None:
    config = replace(tiny_config("llama"), sliding_window=24, window_layers=(True,) * 3)

    assert kv_groups(config) == (KvGroup((0, 1, 2), 24),)


def test_gemma_270m_has_six_groups_of_three_layers() -> None:
    pattern = ((True,) * 5 + (False,)) * 3
    config = replace(
        tiny_config("gemma3"), num_layers=18, window_layers=pattern, sliding_window=512
    )

    assert kv_groups(config) == (
        KvGroup((0, 1, 2), 512),
        KvGroup((3, 4, 6), 512),
        KvGroup((7, 8, 9), 512),
        KvGroup((10, 12, 13), 512),
        KvGroup((14, 15, 16), 512),
        KvGroup((5, 11, 17), None),
    )


def test_only_window_layers_look_back_a_window() -> None:
    config = tiny_config("gemma3")

    assert [layer_window(config, layer) for layer in range(6)] == [24, 24, 24, 24, 24, None]
