"""Warm equals cold, bit for bit, through the real scheduler, manager and kernels.

A sequence is computed once without the cache, then with it: after hits of whole blocks, after hits
that end inside a block and are copied, and after others have evicted part of what was there.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model

from kokuban.core.config import KvDtype, SchedulerConfig
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.scheduler.scheduler import Scheduler

NUM_NEW = 6


def random_tokens(rng: np.random.Generator, count: int) -> list[int]:
    tokens: list[int] = rng.integers(0, 320, count).tolist()
    return tokens


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(variant: str, dtype: str) -> Path:
        return write_tiny_model(folder, variant, form="gguf", dtype=dtype)

    return make


class Recorder:
    """One engine's worth of parts; keeps the logits of every token that is sampled from."""

    def __init__(
        self, path: Path, *, prefix_cache: bool, num_blocks: int = 200, kv_dtype: KvDtype = "bf16"
    ) -> None:
        self.model = NativeModel(path, num_blocks=num_blocks, kv_dtype=kv_dtype)
        windows = [group.window for group in self.model.program.kv.groups]
        space = KeySpace(
            secret=b"0123456789abcdef",
            model_digest=b"m",
            numerics_id="n",
            kv_dtype=kv_dtype,
            block_size=16,
        )
        self.pool = BlockPool(num_blocks)
        self.manager = Manager(
            self.pool,
            block_size=16,
            windows=windows,
            key_space=space if prefix_cache else None,
        )
        config = SchedulerConfig(token_budget=64, max_running_requests=4)
        self.scheduler = Scheduler(config, self.manager, max_context_tokens=512)
        self.sampler = self.model.executor._sampler
        self.logits: list[NDArray[np.float32]] = []
        self.num_copies = 0
        sample = self.sampler.sample

        def recorded(logits: NDArray[np.float32], states: Sequence[object]) -> object:
            self.logits += [row.copy() for row in logits]
            return sample(logits, states)  # type: ignore[arg-type]

        self.sampler.sample = recorded  # type: ignore[method-assign,assignment]

    def run(self, name: str, tokens: Sequence[int]) -> tuple[list[int], NDArray[np.float32], int]:
        """Tokens said, the logits that they were sampled from, and how many tokens were cached."""
        params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
        request = Request(id=RequestId(name), prompt_token_ids=tuple(tokens), params=params)
        self.scheduler.add(request, 0.0)
        self.logits.clear()
        said, cached = [], -1
        while self.scheduler.has_requests:
            plan = self.scheduler.plan(0.0)
            assert plan is not None
            self.num_copies += len(plan.copies)
            self.model.executor.submit(plan)
            for event in self.scheduler.commit(plan, self.model.executor.collect(), 0.0):
                said += [token.token_id for token in event.tokens]
                if event.usage is not None:
                    cached = event.usage.cached_tokens
            self.scheduler.check()
        return said, np.stack(self.logits), cached


PROMPTS = [
    (0, 60, 0),
    (32, 20, 0),
    (33, 20, 32),
    (64, 9, 33),
    (80, 9, 64),
    (47, 20, 47),
    (95, 3, 80),
    (100, 0, 95),
    (100, 0, 99),
]
CASES = [
    *(("llama", dtype, "bf16") for dtype in ("q4_1", "q4_k", "q8_0", "bf16", "f32")),
    ("llama", "q8_0", "fp16"),
    ("llama", "q8_0", "fp32"),
    ("llama", "q8_0", "int8"),
    ("llama", "q8_0", "fp8_e4m3"),
    ("gemma3", "q8_0", "int8"),
    ("gemma3", "q8_0", "fp8_e4m3"),
    ("gemma3", "q8_0", "bf16"),
    ("gemma3", "f32", "bf16"),
]


@pytest.mark.parametrize(("variant", "dtype", "kv_dtype"), CASES)
def test_a_warm_continuation_has_the_logits_of_a_cold_one(
    variant: str, dtype: str, kv_dtype: KvDtype, model_path: Callable[[str, str], Path]
) -> None:
    path = model_path(variant, dtype)
    cold = Recorder(path, prefix_cache=False, kv_dtype=kv_dtype)
    warm = Recorder(path, prefix_cache=True, kv_dtype=kv_dtype)
    rng = np.random.default_rng(31)
    base = random_tokens(rng, 100)

    # Warmed up to block borders and inside blocks; the rest differs from what the pool holds.
    # (tokens of `base`, tokens of its own, tokens that an earlier prompt had in common with it)
    for index, (num_common, num_own, expected) in enumerate(PROMPTS):
        tokens = [*base[:num_common], *random_tokens(rng, num_own)]
        name = f"r{index}"
        said, logits, cached = warm.run(name, tokens)
        cold_said, cold_logits, cold_cached = cold.run(name, tokens)

        assert said == cold_said
        np.testing.assert_array_equal(logits, cold_logits)
        assert cold_cached == 0
        assert cached == expected
        # What was said goes on the conversation, with a new turn behind it.
        follow = [*tokens, *said, *random_tokens(rng, 5)]
        said, logits, cached = warm.run(name + "-follow", follow)
        cold_said, cold_logits, _ = cold.run(name + "-follow", follow)
        assert said == cold_said
        np.testing.assert_array_equal(logits, cold_logits)
        # The last token that was said is computed now, unless an equal conversation did it.
        assert cached == len(follow) - (5 if index == 8 else 6)
    assert warm.num_copies >= 9 * warm.manager.num_groups


@pytest.mark.parametrize("dtype", ["q4_1", "q8_0"])
@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_blocks_that_were_evicted_and_filled_again_change_nothing(
    variant: str, dtype: str, model_path: Callable[[str, str], Path]
) -> None:
    path = model_path(variant, dtype)
    cold = Recorder(path, prefix_cache=False)
    num_groups = cold.manager.num_groups
    warm = Recorder(path, prefix_cache=True, num_blocks=9 * num_groups)
    rng = np.random.default_rng(32)
    prompts = [random_tokens(rng, 70) for _ in range(3)]
    found = set()

    for index in range(12):
        base = prompts[int(rng.integers(0, 3))]
        tokens = [*base[: int(rng.integers(20, 71))], *random_tokens(rng, 20)]
        said, logits, cached = warm.run(f"r{index}", tokens)
        cold_said, cold_logits, _ = cold.run(f"r{index}", tokens)

        assert said == cold_said
        np.testing.assert_array_equal(logits, cold_logits)
        found.add(cached)
    assert 0 in found
    assert max(found) >= 16
    assert any(cached % 16 for cached in found)


def test_the_tiny_gemma_has_windows_that_these_sequences_outgrow(
    model_path: Callable[[str, str], Path],
) -> None:
    windows = [
        group.window
        for group in NativeModel(model_path("gemma3", "f32")).program.kv.groups
        if group.window is not None
    ]

    assert windows
    assert max(windows) < 60
