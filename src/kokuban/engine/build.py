"""The composition root: from a model's name to an engine that runs.

Everything is built here once and handed its values; no component looks up another, and nobody
below sees a whole configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.env import cache_dir, max_isa, omp_num_threads
from kokuban.engine.cache_keys import make_key_space
from kokuban.engine.client import EngineInfo
from kokuban.engine.core import EngineCore
from kokuban.engine.kv_memory import KvMemory, kv_budget, make_kv_memory, make_layout
from kokuban.engine.thread import EngineThread
from kokuban.kernels.native import isa_name, make_threads
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.prefix import KeySpace
from kokuban.models.registry import build_program
from kokuban.observe.clock import SystemClock
from kokuban.observe.machine import cpu_name, num_threads
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import load_constants
from kokuban.plan.memory import KvBudget
from kokuban.program.program import Program
from kokuban.runner.load import Progress, load_weights
from kokuban.runner.native import NativeExecutor
from kokuban.scheduler.prices import ModelPrices
from kokuban.scheduler.scheduler import Scheduler
from kokuban.text.chat import ChatTemplate
from kokuban.text.load import load_text
from kokuban.text.tokenizer import Tokenizer
from kokuban.weights.pull import resolve
from kokuban.weights.source import ModelSource, open_source
from kokuban.weights.wheels import Progress as PullProgress


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model that runs, with its text side. Made by `build_engine`."""

    client: EngineThread
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    end_token_ids: frozenset[int]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """Token ids of a conversation, with the header of the answer."""
        return self.chat_template.encode_chat(messages, **template)

    def close(self) -> None:
        """Stop after the step that runs, and give memory and threads back."""
        self.client.close()


def build_engine(
    model: str | Path,
    *,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    served_name: str | None = None,
    on_load: Progress | None = None,
    on_pull: PullProgress | None = None,
) -> Engine:
    """Find, read and pack a model, and start its engine.

    Args:
        model: a GGUF file, a Hugging Face style directory, a hub id or a short name.
        served_name: what the API calls it; by default what `model` says.
        on_load, on_pull: told how far packing and downloading have come.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run with these settings.
    """
    source = open_source(resolve(str(model), progress=on_pull))
    config = source.config
    program = build_program(config)
    layout = make_layout(program.kv, scheduler.block_size, runtime)
    text = load_text(source.tokenizer_source())
    threads = num_threads(runtime.threads, omp_num_threads=omp_num_threads())
    pool, isa_cap, isa = make_threads(threads), max_isa(), isa_name(max_isa())
    weights = load_weights(
        source, program, config, pool=pool, quantize=runtime.quantize, progress=on_load
    )
    rope_positions = scheduler.max_context_tokens or config.max_positions
    budget = kv_budget(program.kv, layout, config.max_positions, scheduler, runtime)
    info = _info(
        served_name or str(model), config.vocab_size, scheduler, runtime, budget, threads, isa
    )
    key_space = _key_space(source, program, layout, scheduler, runtime, isa, rope_positions)
    memory = make_kv_memory(
        program.kv,
        layout,
        budget,
        key_space=key_space,
        scheduler=scheduler,
        runtime=runtime,
        disk_root=runtime.kv_disk_dir or cache_dir() / "kv",
        model=info.model,
    )
    executor = NativeExecutor(
        program,
        weights,
        memory.storage,
        host=memory.host,
        pool=pool,
        isa_cap=isa_cap,
        max_context_tokens=budget.max_context_tokens,
        rope_positions=rope_positions,
        valid_vocab=min(text.tokenizer.vocab_size, program.vocab_size),
    )
    memory.storage.populate()
    cost = CostModel(
        program,
        weight_bytes=weights.bytes_by_name,
        kv_bytes_per_token=budget.bytes_per_token,
        constants=load_constants(cache_dir(), cpu=cpu_name(), isa=isa, threads=threads),
        chunk_tokens=scheduler.token_budget,
    )
    client = EngineThread(_core(scheduler, memory, executor, cost), info, memory.doorbell)
    return Engine(client, *text, text.tokenizer.end_ids | source.end_token_ids)


def _key_space(
    source: ModelSource,
    program: Program,
    layout: KvLayout,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    isa: str,
    rope_positions: int,
) -> KeySpace | None:
    """What names the blocks of this model in the prefix cache; None when it is off."""
    if not scheduler.prefix_cache:
        return None
    return make_key_space(
        directory=cache_dir(),
        # Keys that outlive the process must not rest on samples of the weights.
        model_digest=source.digest(whole=runtime.kv_disk_bytes > 0),
        program=program,
        layout=layout,
        isa=isa,
        quantize=runtime.quantize,
        max_context_tokens=rope_positions,
    )


def _core(
    config: SchedulerConfig, memory: KvMemory, executor: NativeExecutor, cost: CostModel
) -> EngineCore:
    scheduler = Scheduler(
        config,
        memory.manager,
        max_context_tokens=memory.budget.max_context_tokens,
        prices=ModelPrices(cost, memory.budget.block_bytes),
    )
    return EngineCore(
        scheduler, memory.manager, executor, SystemClock(), log=memory.log, disk=memory.disk
    )


def _info(
    name: str,
    vocab_size: int,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    budget: KvBudget,
    threads: int,
    isa: str,
) -> EngineInfo:
    return EngineInfo(
        model=name,
        vocab_size=vocab_size,
        max_context_tokens=budget.max_context_tokens,
        block_size=scheduler.block_size,
        num_blocks=budget.num_blocks,
        bytes_per_token=budget.bytes_per_token,
        kv_pool_bytes=budget.pool_bytes,
        num_kv_tokens=budget.num_tokens,
        requests_at_full_length=budget.requests_at_full_length,
        kv_dtype=runtime.kv_dtype,
        threads=threads,
        isa=isa,
        token_budget=scheduler.token_budget,
        prefix_cache=scheduler.prefix_cache,
    )
