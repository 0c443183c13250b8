"""Forked choices equal the same choices computed alone, bit for bit, through the real kernels."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.golden.test_prefix_cache_bits import Recorder, random_tokens
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import random_weights, variant_config
from tools.tiny_formats import write_tiny_gguf

from kokuban import LLM, SamplingParams
from kokuban.core.config import KvDtype, RuntimeConfig, SchedulerConfig
from kokuban.core.request import Request, RequestId

NUM_CHOICES = 4
NUM_NEW = 20


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(variant: str, dtype: str) -> Path:
        return write_tiny_model(folder, variant, form="gguf", dtype=dtype)

    return make


def choices(
    name: str, prompt: Sequence[int], n: int = NUM_CHOICES, max_tokens: int = NUM_NEW
) -> list[Request]:
    """Sampled at temperature 1, so that each choice goes its own way."""
    params = SamplingParams(temperature=1, max_tokens=max_tokens, ignore_eos=True, seed=7)
    return [
        Request(
            id=RequestId(f"{name}-{choice}"),
            prompt_token_ids=tuple(prompt),
            params=params,
            seed=7,
            choice=choice,
        )
        for choice in range(n)
    ]


def run(
    recorder: Recorder, requests: Sequence[Request]
) -> dict[RequestId, tuple[list[int], NDArray[np.float32]]]:
    """Run requests that belong together; tokens said, and the logits they were sampled from."""
    said: dict[RequestId, list[int]] = {request.id: [] for request in requests}
    logits: dict[RequestId, list[NDArray[np.float32]]] = {request.id: [] for request in requests}
    recorder.scheduler.add_group(requests, 0.0)
    while recorder.scheduler.has_requests:
        recorder.logits.clear()
        plan = recorder.scheduler.plan(0.0)
        assert plan is not None
        recorder.num_copies += len(plan.copies)
        recorder.model.executor.submit(plan)
        sampled = [chunk.request_id for chunk in plan.chunks if chunk.samples]
        for request_id, row in zip(sampled, recorder.logits, strict=True):
            logits[request_id].append(row)
        for event in recorder.scheduler.commit(plan, recorder.model.executor.collect(), 0.0):
            said[event.request_id] += [token.token_id for token in event.tokens]
        recorder.scheduler.check()
    return {each.id: (said[each.id], np.stack(logits[each.id])) for each in requests}


CASES = [
    *(("llama", dtype, "bf16") for dtype in ("q4_1", "q4_k", "q8_0", "bf16")),
    ("llama", "q8_0", "fp32"),
    ("gemma3", "q8_0", "bf16"),
    ("gemma3", "f32", "fp16"),
]


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize(("variant", "dtype", "kv_dtype"), CASES)
def test_a_forked_choice_has_the_logits_that_it_has_alone(
    variant: str,
    dtype: str,
    kv_dtype: KvDtype,
    prefix_cache: bool,
    model_path: Callable[[str, str], Path],
) -> None:
    path = model_path(variant, dtype)
    cold = Recorder(path, prefix_cache=False, kv_dtype=kv_dtype)
    forked = Recorder(path, prefix_cache=prefix_cache, kv_dtype=kv_dtype)
    rng = np.random.default_rng(41)

    for num_tokens in (20, 64, 90, 97):
        requests = choices(f"r{num_tokens}", random_tokens(rng, num_tokens))
        together = run(forked, requests)
        for request in requests:
            [(said, logits)] = run(cold, [request]).values()
            assert together[request.id][0] == said
            np.testing.assert_array_equal(together[request.id][1], logits)
        assert len({tuple(said) for said, _ in together.values()}) == NUM_CHOICES

    assert forked.scheduler.stats().totals.forked_tokens == 3 * (19 + 63 + 89 + 96)
    # Each forked choice copies, in every group, the block that its first token goes into.
    assert forked.num_copies == 3 * 4 * forked.manager.num_groups - 3 * forked.manager.num_groups


def test_eight_choices_of_1000_tokens_prefill_once_and_say_what_they_say_alone(
    tmp_path: Path,
) -> None:
    prompt = random_tokens(np.random.default_rng(42), 1000)
    config = replace(variant_config("llama"), max_positions=1100)
    path = write_tiny_gguf(tmp_path / "m.gguf", config, random_weights(config, 0), quant="q8_0")
    params = SamplingParams(temperature=1, max_tokens=12, ignore_eos=True, seed=7, n=8)
    runtime = RuntimeConfig(kv_memory_bytes=2**25, threads=1)
    for prefix_cache in (False, True):
        scheduler = SchedulerConfig(prefix_cache=prefix_cache)
        with LLM(path, scheduler=scheduler, runtime=runtime) as llm:
            [output] = llm.generate([prompt], params)
            stats = llm.engine.client.stats()
        alone = SchedulerConfig(prefix_cache=False)
        with LLM(path, scheduler=alone, runtime=runtime) as llm:
            expected = [
                asyncio.run(said_alone(llm, request))
                for request in choices("alone", prompt, n=8, max_tokens=12)
            ]

        assert stats.prompt_tokens - stats.cached_tokens == 1000 + 7
        assert stats.forked_tokens == 7 * 999
        assert [choice.token_ids for choice in output.choices] == expected
        assert len(set(map(tuple, expected))) == 8


async def said_alone(llm: LLM, request: Request) -> list[int]:
    """The tokens of one choice that has the engine to itself."""
    events = llm.engine.client.submit([request])
    return [token.token_id async for event in events for token in event.tokens]
