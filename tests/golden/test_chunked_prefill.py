"""An 8,192-token prompt beside 8 decoders, on a real forward pass.

Total budget 2,048: each step carries the 8 decoders and 2,040 tokens of the prompt, four times, and
32 in a fifth. Budget 2,056 with at most 2,048 for prompts: four steps of 2,048. With a target in
time the chunks are as they come, and the text is the same.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.native_model import NativeModel
from tools.tiny_configs import random_weights, variant_config
from tools.tiny_formats import write_tiny_gguf

from kokuban.core.config import SchedulerConfig
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import StepPlan
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.scheduler.scheduler import Scheduler

PROMPT, NUM_BLOCKS, CONTEXT = 8192, 600, 9000
RNG = np.random.default_rng(20)


def request(name: str, num_tokens: int) -> Request:
    return Request(
        id=RequestId(name),
        prompt_token_ids=tuple(RNG.integers(0, 320, num_tokens).tolist()),
        params=SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    )


@pytest.fixture
def model(tmp_path: Path) -> NativeModel:
    config = replace(variant_config("llama"), max_positions=CONTEXT, num_layers=1)
    path = tmp_path / "long.gguf"
    write_tiny_gguf(path, config, random_weights(config, 0), quant="q8_0")
    return NativeModel(path, threads=2, num_blocks=NUM_BLOCKS, max_context_tokens=CONTEXT)


def run(model: NativeModel, config: SchedulerConfig) -> list[StepPlan]:
    """Plans from the long prompt's first chunk to its last, each computed and committed."""
    manager = Manager(BlockPool(NUM_BLOCKS), block_size=16)
    scheduler = Scheduler(config, manager, max_context_tokens=CONTEXT)
    plans = []

    def step() -> StepPlan:
        plan = scheduler.plan(0.0)
        assert plan is not None
        model.executor.submit(plan)
        scheduler.commit(plan, model.executor.collect(), 0.0)
        return plan

    for i in range(8):
        scheduler.add(request(f"decoder-{i}", 4), 0.0)
    step()
    scheduler.add(request("long", PROMPT), 0.0)
    while not plans or not plans[-1].chunks[-1].samples:
        plans.append(step())
    return plans


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SchedulerConfig(token_budget=2048), [2040, 2040, 2040, 2040, 32]),
        (SchedulerConfig(token_budget=2056, max_prefill_tokens=2048), [2048] * 4),
    ],
    ids=["total budget", "prefill cap"],
)
def test_every_step_carries_all_decoders_and_fills_up_with_the_prompt(
    config: SchedulerConfig, expected: list[int], model: NativeModel
) -> None:
    plans = run(model, config)

    assert [len(plan.chunks[-1].token_ids) for plan in plans] == expected
    for plan in plans:
        assert [len(chunk.token_ids) for chunk in plan.chunks[:-1]] == [1] * 8
        assert all(chunk.samples for chunk in plan.chunks[:-1])
        assert {chunk.request_id for chunk in plan.chunks} == {
            "long",
            *(f"decoder-{i}" for i in range(8)),
        }


def test_a_step_target_cuts_the_prompt_and_changes_no_token(model: NativeModel) -> None:
    config = SchedulerConfig(token_budget=2048)
    prompts = {name: request(name, 8 if "d" in name else 1000) for name in ("d1", "d2", "long")}
    whole, _ = said(model, config, prompts)
    cut, chunks = said(model, replace(config, step_target_ms=7.0), prompts)

    # 5 ms beside the decoders, 0.1 ms for a token; then nobody decodes any more.
    assert chunks == [50] * 15 + [250]
    assert cut == whole
    assert all(len(tokens) == 20 for tokens in cut.values())


def said(
    model: NativeModel, config: SchedulerConfig, requests: dict[str, Request]
) -> tuple[dict[str, list[int]], list[int]]:
    """What is said when the long prompt arrives last, and its chunks; steps take a fixed time."""
    scheduler = Scheduler(
        config, Manager(BlockPool(NUM_BLOCKS), block_size=16), max_context_tokens=CONTEXT
    )
    tokens: dict[str, list[int]] = {name: [] for name in requests}
    chunks: list[int] = []
    run_id = f"-{config.step_target_ms}"
    waiting = {name: replace(each, id=RequestId(name + run_id)) for name, each in requests.items()}
    now_s = 0.0
    scheduler.add(waiting.pop("d1"), now_s)
    scheduler.add(waiting.pop("d2"), now_s)
    while scheduler.has_requests:
        plan = scheduler.plan(now_s)
        assert plan is not None
        model.executor.submit(plan)
        sizes = [len(chunk.token_ids) for chunk in plan.chunks]
        chunks += [size for size in sizes if size > 8]
        now_s += sum(0.001 if size == 1 else 0.0001 * size for size in sizes)
        for event in scheduler.commit(plan, model.executor.collect(), now_s):
            tokens[event.request_id.removesuffix(run_id)] += [
                token.token_id for token in event.tokens
            ]
        if waiting and scheduler.stats().totals.steps == 5:
            scheduler.add(waiting.pop("long"), now_s)
    return tokens, chunks
