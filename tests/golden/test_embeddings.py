"""Vectors of prompts: right, and the same in every bit however they are computed."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.golden.goldens import pooled_golden, tiny_golden
from tools.make_tiny_models import write_tiny_model

from kokuban import LLM, SamplingParams
from kokuban.core.config import KvDtype, RuntimeConfig, SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.pooling import POOLINGS, Pooling, PoolingParams
from kokuban.runner.reference import load_reference
from kokuban.weights.source import open_source

Vector = NDArray[np.float32]
ModelPath = Callable[[str, str], Path]

RNG = np.random.default_rng(21)
PROMPT: list[int] = RNG.integers(0, 320, 150).tolist()
OTHERS: list[list[int]] = [RNG.integers(0, 320, n).tolist() for n in (1, 17, 40, 99, 203)]
NOISE = 2e-5
"""Both sides are float32 with sums of 256 to 512 terms, and numbers of about 1: 5e-6 was seen."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> ModelPath:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(variant: str, dtype: str) -> Path:
        return write_tiny_model(folder, variant, form="gguf", dtype=dtype)

    return make


def open_llm(
    path: Path,
    *,
    token_budget: int = 256,
    threads: int = 1,
    kv_dtype: KvDtype = "bf16",
    prefix_cache: bool = True,
) -> LLM:
    return LLM(
        path,
        scheduler=SchedulerConfig(
            token_budget=token_budget,
            max_running_requests=min(8, token_budget),
            prefix_cache=prefix_cache,
        ),
        runtime=RuntimeConfig(kv_memory_bytes=2**24, threads=threads, kv_dtype=kv_dtype),
    )


def vectors(
    llm: LLM, prompts: Sequence[Sequence[int]], pooling: Pooling, *, normalize: bool = False
) -> list[Vector]:
    outputs = llm.embed(prompts, PoolingParams(pooling=pooling, normalize=normalize))
    return [np.frombuffer(output.data, "<f4") for output in outputs]


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gemma3", "phi3"])
def test_vectors_are_those_of_transformers(variant: str, model_path: ModelPath) -> None:
    golden = pooled_golden(variant)

    with open_llm(model_path(variant, "f32"), kv_dtype="fp32") as llm:
        [last] = vectors(llm, [golden.token_ids], "last")
        [mean] = vectors(llm, [golden.token_ids], "mean")

    assert np.abs(last - golden.last).max() < NOISE
    assert np.abs(mean - golden.mean).max() < NOISE


@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2", "qwen3_wide"])
def test_vectors_are_those_of_the_float64_reference(variant: str, model_path: ModelPath) -> None:
    path = model_path(variant, "f32")
    hidden = load_reference(open_source(path)).hidden(PROMPT)

    with open_llm(path, kv_dtype="fp32") as llm:
        [last] = vectors(llm, [PROMPT], "last")
        [mean] = vectors(llm, [PROMPT], "mean")

    assert np.abs(last - hidden[-1]).max() < NOISE
    assert np.abs(mean - hidden.mean(axis=0)).max() < NOISE


def test_a_vector_multiplied_by_the_output_matrix_gives_the_logits(model_path: ModelPath) -> None:
    """What guards the place from which the hidden states are taken: after the final norm."""
    golden = tiny_golden("llama")
    model = load_reference(open_source(model_path("llama", "f32")))
    matrix = np.asarray(model._weights["output.weight"], np.float64)

    with open_llm(model_path("llama", "f32"), kv_dtype="fp32") as llm:
        [last] = vectors(llm, [golden.token_ids], "last")

    assert np.abs(matrix @ last - golden.logits[-1]).max() < 1e-3


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("variant", "dtype"), [("llama", "q4_k"), ("gemma3", "q8_0")])
def test_company_chunks_threads_and_the_cache_change_no_bit(
    variant: str, dtype: str, pooling: Pooling, model_path: ModelPath
) -> None:
    path = model_path(variant, dtype)
    with open_llm(path, token_budget=2048, prefix_cache=False) as llm:
        [alone] = vectors(llm, [PROMPT], pooling)

    found: list[Vector] = []
    for token_budget, threads in ((1, 1), (7, 2), (64, 3), (256, 2)):
        with open_llm(path, token_budget=token_budget, threads=threads) as llm:
            crowd = [*OTHERS[:2], PROMPT, *OTHERS[2:], PROMPT]
            batch = vectors(llm, crowd, pooling)
            found += [batch[2], batch[-1]]
            # Once more: what the last token needs is in the cache now.
            found += vectors(llm, [PROMPT], pooling)

    for vector in found:
        np.testing.assert_array_equal(vector, alone)


def test_texts_and_vectors_share_steps_and_no_bit_changes(model_path: ModelPath) -> None:
    """Rows that are sampled and rows that are pooled lie side by side in one step."""
    path = model_path("qwen2", "q4_k")
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with open_llm(path, prefix_cache=False) as llm:
        alone = vectors(llm, OTHERS, "mean")
        said = [output.choices[0].token_ids for output in llm.generate(OTHERS, params)]

    with open_llm(path, token_budget=64, prefix_cache=False) as llm:
        streams = [llm.stream(prompt, params) for prompt in OTHERS]
        firsts = [next(stream) for stream in streams]
        beside = vectors(llm, OTHERS, "mean")
        tokens = [
            [token.token_id for delta in (first, *stream) for token in delta.tokens]
            for first, stream in zip(firsts, streams, strict=True)
        ]

    assert tokens == said
    for vector, wanted in zip(beside, alone, strict=True):
        np.testing.assert_array_equal(vector, wanted)


@pytest.fixture(scope="module")
def llama(model_path: ModelPath) -> Iterator[LLM]:
    with open_llm(model_path("llama", "q8_0")) as llm:
        yield llm


def test_vectors_have_length_1_unless_they_are_wanted_raw(llama: LLM) -> None:
    [raw] = vectors(llama, [PROMPT], "mean")
    [scaled] = vectors(llama, [PROMPT], "mean", normalize=True)

    assert np.linalg.norm(raw) > 2
    assert abs(float(np.linalg.norm(scaled.astype(np.float64))) - 1) < 1e-6
    np.testing.assert_allclose(scaled, raw / np.linalg.norm(raw), rtol=1e-5)


def test_a_short_vector_is_the_beginning_of_the_long_one_scaled_again(llama: LLM) -> None:
    [long] = vectors(llama, [PROMPT], "last")

    [output] = llama.embed(PROMPT, PoolingParams(dimensions=16))

    assert len(output.embedding) == 16
    short = long[:16].astype(np.float64)
    np.testing.assert_allclose(output.embedding, short / np.linalg.norm(short), rtol=1e-6)


def test_more_numbers_than_the_model_has_are_refused(llama: LLM) -> None:
    with pytest.raises(RequestError, match="dimensions=257 is above 256"):
        llama.embed(PROMPT, PoolingParams(dimensions=257))


def test_a_text_is_encoded_and_one_prompt_is_a_list_of_one(llama: LLM) -> None:
    [from_text] = llama.embed("some words")
    [from_ids] = llama.embed(from_text.prompt_token_ids)

    assert from_text.data == from_ids.data
    assert from_ids.usage.output_tokens == 0


def test_more_prompts_than_the_queue_takes_come_one_part_after_the_other(
    model_path: ModelPath,
) -> None:
    scheduler = SchedulerConfig(token_budget=64, max_running_requests=2, max_waiting_requests=3)
    with LLM(
        model_path("llama", "q8_0"),
        scheduler=scheduler,
        runtime=RuntimeConfig(kv_memory_bytes=2**24, threads=1),
    ) as llm:
        outputs = llm.embed([[index + 1] for index in range(10)])

    assert [output.prompt_token_ids for output in outputs] == [(index + 1,) for index in range(10)]
