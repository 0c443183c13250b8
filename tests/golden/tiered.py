"""A model with its engine core and all tiers of KV, driven by hand; keeps what logits it saw.

The parts are the ones that `build_engine` puts together. The test's own thread makes the steps, so
that one sequence of calls gives one sequence of plans, apart from when the disk answers.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kokuban.core.config import KvDtype, RuntimeConfig, SchedulerConfig
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.speculation import Proposer
from kokuban.core.step import BlockCopy, BlockLoad, BlockStore, StepPlan, StepResult, Usage
from kokuban.engine.cache_keys import make_key_space
from kokuban.engine.core import EngineCore
from kokuban.engine.kv_memory import KvMemory, kv_budget, make_kv_memory, make_layout
from kokuban.kernels.native import make_threads
from kokuban.models.registry import build_program
from kokuban.observe.clock import SystemClock
from kokuban.program.program import Program
from kokuban.runner.load import LoadedWeights, load_weights
from kokuban.runner.native import NativeExecutor
from kokuban.scheduler.scheduler import Scheduler
from kokuban.weights.source import ModelSource, open_source

DISK_S = 20.0
"""Longest wait for the disk; a test that needs it has failed."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model's weights: read once, served by many engines."""

    source: ModelSource
    program: Program
    weights: LoadedWeights
    pool: Any

    @classmethod
    def open(cls, path: Path, threads: int = 1) -> Self:
        source = open_source(path)
        program = build_program(source.config)
        pool = make_threads(threads)
        return cls(source, program, load_weights(source, program, source.config, pool=pool), pool)


@dataclass(frozen=True, slots=True)
class Said:
    """What one request got."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    digests: tuple[bytes, ...]
    """Of the logits that each token was sampled from, byte for byte; of drafts that were wrong
    too."""

    usage: Usage

    @property
    def proof(self) -> tuple[object, ...]:
        """Equal for two requests if they computed the same, to the bit."""
        return self.tokens, self.logprobs, self.digests


class _Watched:
    """An executor that notes what its steps move, between the engine and the real one."""

    depth = 0

    def __init__(self, executor: NativeExecutor) -> None:
        self._executor = executor
        self.moved: Counter[str] = Counter()

    def submit(self, plan: StepPlan) -> None:
        self.moved.update(type(move).__name__ for move in plan.moves)
        self.moved["preempted"] += len(plan.preempted)
        self._executor.submit(plan)

    def collect(self) -> StepResult:
        return self._executor.collect()

    def close(self) -> None:
        self._executor.close()


class Tiered:
    """See the module. Use it as a context manager: leaving it writes what there is to disk.

    Args:
        cache: the cache directory: the secret of the keys, and the disk tier, lie in it.
        num_blocks: blocks of the pool, in all.
        ram_blocks: blocks of host memory, in all; 0: none.
        disk_bytes: 0: no disk tier.
        prefix_cache: False: every prompt is computed from its start.
        proposer: guesses tokens ahead; None: nobody does.
    """

    def __init__(
        self,
        model: Loaded,
        cache: Path,
        *,
        kv_dtype: KvDtype = "bf16",
        num_blocks: int = 64,
        ram_blocks: int = 0,
        disk_bytes: int = 0,
        prefix_cache: bool = True,
        token_budget: int = 64,
        max_running: int = 4,
        max_context_tokens: int = 384,
        proposer: Proposer | None = None,
    ) -> None:
        program = model.program
        layout = make_layout(program.kv, 16, RuntimeConfig(kv_dtype=kv_dtype))
        runtime = RuntimeConfig(
            kv_dtype=kv_dtype,
            kv_memory_bytes=num_blocks * layout.bytes_per_block,
            kv_ram_bytes=ram_blocks * layout.bytes_per_block,
            kv_disk_bytes=disk_bytes,
        )
        config = SchedulerConfig(token_budget=token_budget, max_running_requests=max_running)
        budget = kv_budget(program.kv, layout, max_context_tokens, config, runtime)
        key_space = make_key_space(
            directory=cache,
            model_digest=model.source.digest(whole=True),
            program=program,
            layout=layout,
            isa="any",
            quantize="none",
            max_context_tokens=max_context_tokens,
        )
        self.memory: KvMemory = make_kv_memory(
            program.kv,
            layout,
            budget,
            key_space=key_space if prefix_cache else None,
            scheduler=config,
            runtime=runtime,
            disk_root=cache / "kv",
            model="test",
        )
        executor = NativeExecutor(
            program,
            model.weights,
            self.memory.storage,
            host=self.memory.host,
            pool=model.pool,
            max_context_tokens=budget.max_context_tokens,
            rope_positions=max_context_tokens,
        )
        self._digests: dict[RequestId, list[bytes]] = {}
        self._record(executor)
        self._executor = _Watched(executor)
        self.moved = self._executor.moved
        self.scheduler = Scheduler(
            config,
            self.memory.manager,
            max_context_tokens=budget.max_context_tokens,
            proposer=proposer,
        )
        self.core = EngineCore(
            self.scheduler,
            self.memory.manager,
            self._executor,
            SystemClock(),
            log=self.memory.log,
            disk=self.memory.disk,
        )
        self._rung = threading.Event()
        self.memory.doorbell.answer_with(self._rung.set)
        self._num_asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.core.close()

    def ask(self, prompt: Sequence[int], max_tokens: int = 6, *, tenant: str = "") -> Said:
        """One request with the engine to itself."""
        [said] = self.together([prompt], max_tokens, tenant=tenant)
        return said

    def together(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 6,
        *,
        tenant: str = "",
        params: Mapping[int, SamplingParams] | None = None,
    ) -> list[Said]:
        """Requests that arrive at once, run to their ends; then all copying down is done, too."""
        greedy = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        requests = [
            Request(
                id=RequestId(f"r{self._num_asked + i}"),
                prompt_token_ids=tuple(prompt),
                params=(params or {}).get(i, greedy),
                seed=i,
                tenant=tenant,
            )
            for i, prompt in enumerate(prompts)
        ]
        self._num_asked += len(requests)
        self.core.add(requests)
        found: dict[RequestId, tuple[list[int], list[float]]] = {
            request.id: ([], []) for request in requests
        }
        usages: dict[RequestId, Usage] = {}
        while not (self.core.idle and len(usages) == len(requests)):
            self._rung.clear()
            for event in self.core.step():
                assert event.error is None, event.error
                tokens, logprobs = found[event.request_id]
                tokens += [token.token_id for token in event.tokens]
                logprobs += [token.logprob for token in event.tokens]
                if event.finish is not None:
                    assert event.usage is not None
                    usages[event.request_id] = event.usage
            self.scheduler.check()
            if self.core.idle and len(usages) < len(requests):
                assert self._rung.wait(DISK_S), "nobody can go on, and the disk does nothing"
        return [
            Said(
                tuple(found[request.id][0]),
                tuple(found[request.id][1]),
                tuple(self._digests.pop(request.id)),
                usages[request.id],
            )
            for request in requests
        ]

    def cancel_in_mid_flight(self, prompt: Sequence[int]) -> None:
        """Ask, and go away after one step."""
        request_id = RequestId(f"r{self._num_asked}")
        self._num_asked += 1
        params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
        self.core.add([Request(id=request_id, prompt_token_ids=tuple(prompt), params=params)])
        self.core.step()
        self.core.cancel(request_id)
        self.scheduler.check()
        self._digests.pop(request_id, None)

    def settle(self) -> None:
        """Until everything that is worth it is in host memory, and on disk if there is one."""
        while True:
            self._rung.clear()
            self.core.step()
            disk, tiers = self.memory.disk, self.memory.tiers
            assert tiers is not None, "nothing settles without lower tiers"
            if disk is not None and disk.num_pending:
                assert self._rung.wait(DISK_S), "the disk does nothing"
            elif not tiers.num_to_store and not tiers.num_to_spill:
                self.scheduler.check()
                return

    def _record(self, executor: NativeExecutor) -> None:
        sample, vocab_size = executor._sample, executor._vocab_size

        def recorded(rows: Any, logits: Any, outputs: Any) -> None:
            for row, values in zip(rows, logits, strict=True):
                # Columns beyond the vocabulary hold nothing: see `runner.logits_memory`.
                values = values[:vocab_size]
                digest = hashlib.blake2b(values.tobytes(), digest_size=16).digest()
                self._digests.setdefault(row.chunk.request_id, []).append(digest)
            sample(rows, logits, outputs)

        executor._sample = recorded  # type: ignore[method-assign]


KINDS = (BlockCopy.__name__, BlockStore.__name__, BlockLoad.__name__)
