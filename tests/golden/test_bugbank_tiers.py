"""Faults of other engines with KV below the pool, asked of this one with real kernels."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.golden.tiered import Loaded, Said, Tiered
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import WINDOW, random_weights, tiny_config
from tools.tiny_formats import write_tiny_gguf

from kokuban.core.config import KvDtype
from kokuban.core.sampling_params import SamplingParams

DISK_BYTES = 1 << 30


def greedy(max_tokens: int, **more: object) -> SamplingParams:
    fixed = {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    return SamplingParams(**{**fixed, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Loaded]:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def load(variant: str = "llama", seed: int = 0, theta: float | None = None) -> Loaded:
        if theta is None:
            return Loaded.open(
                write_tiny_model(folder, variant, seed=seed, form="gguf", dtype="q8_0")
            )
        config = tiny_config("llama")
        config = replace(config, rope=replace(config.rope, theta=theta))
        path = folder / f"theta-{theta}.gguf"
        return Loaded.open(write_tiny_gguf(path, config, random_weights(config, 0), quant="q8_0"))

    return load


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(count)]


def proofs(found: Sequence[Said]) -> list[tuple[object, ...]]:
    return [said.proof for said in found]


@pytest.mark.parametrize("other", ["weights", "kv dtype", "rope base"])
def test_no_other_model_and_no_other_kv_reads_what_lies_on_disk(
    model: Callable[..., Loaded], tmp_path: Path, other: str
) -> None:
    """Bugbank B67: the same tokens and shapes, and numbers that differ."""
    prompt = tokens(1, 70)
    with Tiered(model(), tmp_path, disk_bytes=DISK_BYTES) as engine:
        engine.ask(prompt)
    kv_dtype: KvDtype = "fp16" if other == "kv dtype" else "bf16"
    changed = {
        "weights": lambda: model(seed=1),
        "kv dtype": model,
        "rope base": lambda: model(theta=5e4),
    }[other]()
    with Tiered(changed, tmp_path / "cold", kv_dtype=kv_dtype, prefix_cache=False) as engine:
        cold = engine.ask(prompt)

    with Tiered(changed, tmp_path, kv_dtype=kv_dtype, disk_bytes=DISK_BYTES) as engine:
        found = engine.ask(prompt)
    with Tiered(model(), tmp_path, disk_bytes=DISK_BYTES) as engine:
        again = engine.ask(prompt)

    assert found.usage.cached_tokens == 0
    assert found.proof == cold.proof
    # What the first one wrote is still its own.
    assert again.usage.cached_disk_tokens == len(prompt) - 6


@pytest.mark.parametrize("length", [31, 32, 33, 64, 65])
def test_a_window_at_its_border_and_from_every_tier(
    model: Callable[..., Loaded], tmp_path: Path, length: int
) -> None:
    """Bugbank B78: prompt and 40 tokens, then all of it with a new turn, through a small pool."""
    gemma = model("gemma3")
    assert length > WINDOW
    prompt, turn = tokens(length, length), tokens(7, 9)
    with Tiered(gemma, tmp_path, prefix_cache=False, num_blocks=200) as engine:
        cold = engine.ask(prompt, 40)
        cold_turn = engine.ask([*prompt, *cold.tokens, *turn])

    sources = set()
    with Tiered(gemma, tmp_path, num_blocks=50, ram_blocks=80, disk_bytes=DISK_BYTES) as engine:
        for number in range(4):
            assert engine.ask(prompt, 40).proof == cold.proof
            engine.settle()
            for other in range(2 * number):
                engine.ask(tokens(100 + 10 * number + other, 70), 1)
                engine.settle()
            found = engine.ask([*prompt, *cold.tokens, *turn])
            assert found.proof == cold_turn.proof
            usage = found.usage
            if usage.cached_tokens:
                below = usage.cached_ram_tokens + usage.cached_disk_tokens
                sources.add("below" if below else "pool")
    assert sources == {"pool", "below"}


def test_eight_prompts_in_random_order_fifty_times(
    model: Callable[..., Loaded], tmp_path: Path
) -> None:
    """Bugbank B99: copies down and up while blocks change hands, and clients that go away."""
    rng = random.Random(99)
    prompts = [tokens(200 + i, 96) for i in range(8)]
    with Tiered(model(), tmp_path / "cold", prefix_cache=False) as engine:
        cold = [engine.ask(prompt, 4).proof for prompt in prompts]

    with Tiered(model(), tmp_path, num_blocks=16, ram_blocks=20, disk_bytes=DISK_BYTES) as engine:
        for number in range(50):
            chosen = rng.sample(range(8), rng.randrange(1, 4))
            found = engine.together([prompts[i] for i in chosen], 4)
            assert proofs(found) == [cold[i] for i in chosen]
            if number % 5 == 0:
                engine.cancel_in_mid_flight(rng.choice(prompts))
        assert engine.moved["BlockLoad"] > 50
        assert engine.moved["BlockStore"] > 50
        assert engine.memory.tiers is not None
        engine.settle()
        assert engine.memory.tiers.num_pinned == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_that_wait_for_their_kv_do_not_block_each_other(
    model: Callable[..., Loaded], tmp_path: Path, order: tuple[int, int]
) -> None:
    """Bugbank B100: a pool of 8 blocks; one needs 7, the other 5, both have theirs below it."""
    texts = [tokens(1, 7 * 16 - 8), tokens(2, 5 * 16 - 8)]
    plain = tokens(3, 20)
    with Tiered(model(), tmp_path / "cold", prefix_cache=False, num_blocks=64) as engine:
        cold = [engine.ask(text, 4).proof for text in (*texts, plain)]

    with Tiered(
        model(), tmp_path, num_blocks=8, ram_blocks=20, disk_bytes=DISK_BYTES, max_running=4
    ) as engine:
        for number in range(10):
            chosen = [*order, 2]
            found = engine.together([(*texts, plain)[i] for i in chosen], 4)
            assert proofs(found) == [cold[i] for i in chosen], f"round {number}"
        assert engine.moved["BlockLoad"] > 10
        engine.settle()
        assert engine.memory.manager.num_free == 8


@pytest.mark.parametrize("token_budget", [8, 64])
@pytest.mark.parametrize("ram_blocks", [0, 60])
def test_preempted_streams_with_penalties_seeds_and_logprobs_end_as_alone(
    model: Callable[..., Loaded], tmp_path: Path, token_budget: int, ram_blocks: int
) -> None:
    """Bugbank B57: a pool for 2.5 of four streams of 64 tokens."""
    prompts = [tokens(10 + i, 40) for i in range(4)]
    params = {
        0: greedy(64, logprobs=3),
        1: greedy(64),
        2: greedy(64, temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
        3: greedy(64, temperature=0.8, frequency_penalty=0.7),
    }
    with Tiered(model(), tmp_path / "cold", prefix_cache=False, num_blocks=64) as engine:
        alone = engine.together(prompts, params=params)

    with Tiered(
        model(), tmp_path, num_blocks=17, ram_blocks=ram_blocks, token_budget=token_budget
    ) as engine:
        found = engine.together(prompts, params=params)

    assert proofs(found) == proofs(alone)
    assert [len(said.tokens) for said in found] == [64] * 4
    assert engine.moved["preempted"] > 0
    assert all(said.usage.preemptions < 20 for said in found)
    assert (engine.moved["BlockLoad"] > 0) == (ram_blocks > 0)
