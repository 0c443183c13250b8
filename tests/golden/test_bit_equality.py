"""The promise of docs/decisions/0007: company, chunks, preemption and threads change no bit.

Each weight format of the engine × each way of computing the same tokens. `array_equal`, no margin.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.native_model import Logits, NativeModel
from tools.make_tiny_models import write_tiny_model

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.request import RequestId
from kokuban.kernels.native import isa_name

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
PLAIN = ("f32", "f16", "bf16")
CHUNKS = (1, 7, 16, 64, 2048)
RNG = np.random.default_rng(11)
TOKENS = tuple(RNG.integers(0, 320, 150).tolist())
OTHERS = tuple(tuple(RNG.integers(0, 320, length).tolist()) for length in (1, 17, 40, 150, 203))


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(variant: str, dtype: str) -> Path:
        return write_tiny_model(folder, variant, form="gguf", dtype=dtype)

    return make


@pytest.fixture(scope="module")
def alone(model_path: Callable[[str, str], Path]) -> Callable[[str, str, KvDtype], Logits]:
    """Logits of TOKENS computed at once, alone, on one thread: what all others must equal."""

    @cache
    def compute(variant: str, dtype: str, kv_dtype: KvDtype = "bf16") -> Logits:
        return NativeModel(model_path(variant, dtype), kv_dtype=kv_dtype).logits(TOKENS)

    return compute


ModelPath = Callable[[str, str], Path]
Alone = Callable[..., Logits]


@pytest.mark.parametrize("dtype", FORMATS + PLAIN)
def test_chunks_change_nothing(dtype: str, model_path: ModelPath, alone: Alone) -> None:
    model = NativeModel(model_path("llama", dtype), num_blocks=1024)

    for chunk_size in CHUNKS:
        np.testing.assert_array_equal(model.logits(TOKENS, chunk_size), alone("llama", dtype))


@pytest.mark.parametrize("dtype", FORMATS + PLAIN)
def test_company_changes_nothing(dtype: str, model_path: ModelPath, alone: Alone) -> None:
    """Keeps B58 out: docs/bugbank.md."""
    model = NativeModel(model_path("llama", dtype), num_blocks=1024)

    for chunk_size in (1, 16, None):
        found = model.together([OTHERS[0], OTHERS[1], TOKENS, *OTHERS[2:]], chunk_size)
        np.testing.assert_array_equal(found[2], alone("llama", dtype))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("dtype", FORMATS + PLAIN)
def test_threads_change_nothing(
    dtype: str, threads: int, model_path: ModelPath, alone: Alone
) -> None:
    model = NativeModel(model_path("llama", dtype), threads=threads)

    np.testing.assert_array_equal(model.logits(TOKENS), alone("llama", dtype))
    np.testing.assert_array_equal(model.logits(TOKENS, 1), alone("llama", dtype))


LOSERS: list[tuple[str, str, KvDtype]] = [
    *(("llama", dtype, "bf16") for dtype in ("q4_1", "q4_k", "q8_0", "bf16", "f32")),
    ("llama", "q8_0", "int8"),
    ("llama", "q8_0", "fp8_e4m3"),
    ("gemma3", "q8_0", "int8"),
    ("gemma3", "q8_0", "fp8_e4m3"),
]


@pytest.mark.parametrize(("variant", "dtype", "kv_dtype"), LOSERS)
def test_a_request_that_lost_its_blocks_computes_the_same_again(
    variant: str, dtype: str, kv_dtype: KvDtype, model_path: ModelPath, alone: Alone
) -> None:
    """Preemption by recompute: prompt and output so far come back as one long chunk."""
    model = NativeModel(model_path(variant, dtype), kv_dtype=kv_dtype, num_blocks=2048)
    first, again = RequestId("first"), RequestId("again")
    model.step([(first, 0, TOKENS[:60])])
    for position in range(60, 90):
        model.step([(first, position, TOKENS[position : position + 1])])
    model.end(first)

    recomputed = [model.step([(again, 0, TOKENS[:91])])[0]]
    recomputed += [
        model.step([(again, position, TOKENS[position : position + 1])])[0]
        for position in range(91, len(TOKENS))
    ]

    np.testing.assert_array_equal(np.concatenate(recomputed), alone(variant, dtype, kv_dtype))


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "gemma3", "mistral"])
def test_no_architecture_is_an_exception(variant: str, model_path: ModelPath, alone: Alone) -> None:
    model = NativeModel(model_path(variant, "q8_0"), threads=2, num_blocks=4096)

    for chunk_size in CHUNKS:
        found = model.together([OTHERS[3], TOKENS, OTHERS[1]], chunk_size)
        np.testing.assert_array_equal(found[1], alone(variant, "q8_0"))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen2"])
def test_no_kv_dtype_is_an_exception(
    variant: str, kv_dtype: KvDtype, model_path: ModelPath, alone: Alone
) -> None:
    """Company, chunks and threads; gemma3 has window groups, which these sequences outgrow."""
    path = model_path(variant, "q4_1")
    model = NativeModel(path, kv_dtype=kv_dtype, threads=2, num_blocks=4096)

    for chunk_size in CHUNKS:
        found = model.together([TOKENS, OTHERS[2]], chunk_size)
        np.testing.assert_array_equal(found[0], alone(variant, "q4_1", kv_dtype))


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen2"])
def test_quantised_kv_changes_the_logits_a_little(
    variant: str, kv_dtype: KvDtype, alone: Alone
) -> None:
    """A guard for the tests beside it: the dtype reaches the kernels, and is no nonsense."""
    exact, found = alone(variant, "q4_1", "fp32"), alone(variant, "q4_1", kv_dtype)

    error = np.abs(found - exact).max() / exact.std()
    assert 1e-5 < error < 0.5


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp8_e4m3"])
@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_the_block_size_changes_nothing(
    block_size: int, kv_dtype: KvDtype, model_path: ModelPath, alone: Alone
) -> None:
    model = NativeModel(model_path("llama", "q4_k"), block_size=block_size, kv_dtype=kv_dtype)

    np.testing.assert_array_equal(model.logits(TOKENS, 7), alone("llama", "q4_k", kv_dtype))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        *((dtype, "bf16") for dtype in FORMATS + PLAIN),
        *(("q4_1", kv_dtype) for kv_dtype in KV_DTYPES if kv_dtype != "bf16"),
    ],
)
def test_the_instruction_set_changes_nothing(
    dtype: str, kv_dtype: KvDtype, model_path: ModelPath, alone: Alone
) -> None:
    """Stronger than the promise: kernels are one text for all instruction sets (decision 0006)."""
    short = TOKENS[:21]
    for cap in range(5):
        if cap and isa_name(cap) == isa_name(cap - 1):
            continue
        model = NativeModel(model_path("llama", dtype), isa_cap=cap, kv_dtype=kv_dtype)
        expected = alone("llama", dtype, kv_dtype)[: len(short)]
        np.testing.assert_array_equal(model.logits(short), expected)
