"""The composition root: from a model's name to an engine that runs.

Everything is built here once and handed its values; no component looks up another, and nobody
below sees a whole configuration.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.env import cache_dir, debug
from kokuban.core.model_config import ModelConfig
from kokuban.core.speculation import Proposer
from kokuban.engine.cache_keys import make_key_space
from kokuban.engine.client import EngineInfo
from kokuban.engine.core import EngineCore
from kokuban.engine.engine import Engine
from kokuban.engine.grammars import GrammarStore
from kokuban.engine.kv_memory import KvMemory, kv_budget, make_kv_memory, make_layout
from kokuban.engine.loading import Compute, Loading, begin_loading
from kokuban.engine.public_prefix import public_token_ids
from kokuban.engine.thread import EngineThread
from kokuban.kernels.merges import find_merges
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.prefix import KeySpace
from kokuban.observe.clock import SystemClock
from kokuban.observe.machine import cpu_name
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import load_constants
from kokuban.plan.memory import KvBudget
from kokuban.program.program import Program
from kokuban.runner.load import LoadedWeights, Progress
from kokuban.runner.native import NativeExecutor
from kokuban.sampling.grammar import GrammarCompiler
from kokuban.scheduler.prices import ModelPrices, block_worth
from kokuban.scheduler.scheduler import Scheduler
from kokuban.text.load import ModelText, load_text
from kokuban.weights.progress import Progress as PullProgress
from kokuban.weights.source import ModelSource

if TYPE_CHECKING:
    from kokuban.engine.speculation import DraftFiles

POPULATE_AFTER_S = 1.0
"""A server has modules to load yet when its engine is built, and they want memory at once."""


def build_engine(
    model: str | Path | Loading,
    *,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    served_name: str | None = None,
    on_load: Progress | None = None,
    on_pull: PullProgress | None = None,
    serves: bool = False,
) -> Engine:
    """Find, read and pack a model, and start its engine.

    Args:
        model: a GGUF file, a Hugging Face style directory, a hub id or a short name; or one that
            is being loaded already, with the same `runtime`.
        served_name: what the API calls it; by default what `model` says.
        on_load, on_pull: told how far packing and downloading have come.
        serves: prepare now, while weights are packed, what would hold others up later.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run with these settings.
    """
    if not isinstance(model, Loading):
        model = begin_loading(model, runtime=runtime, on_load=on_load, on_pull=on_pull)
    with model as loading:
        return _build(loading, scheduler, runtime, served_name or loading.name, serves=serves)


def _build(
    loading: Loading,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    name: str,
    *,
    serves: bool,
) -> Engine:
    source, program, compute = loading.source, loading.program, loading.compute
    config = source.config
    layout = make_layout(program.kv, scheduler.block_size, runtime)
    text = load_text(source.tokenizer_source(), find_merges)
    valid_vocab = min(text.tokenizer.vocab_size, program.vocab_size)
    ends = text.tokenizer.end_ids | source.end_token_ids
    compiler = GrammarCompiler(text.tokenizer, ends, valid_vocab)
    if serves:
        compiler.warm_up()
    draft = _draft(loading, runtime, text)
    rope_positions = scheduler.max_context_tokens or config.max_positions
    key_space = _key_space(
        source, program, layout, scheduler, runtime, compute.isa, rope_positions, text
    )
    weights = loading.weights()
    # Only now: the pool's size depends on the memory that is left.
    budget = _budget(program, layout, config.max_positions, scheduler, runtime, draft)
    info = _info(name, config, scheduler, runtime, budget, compute)
    cost = _cost(program, weights, budget, scheduler, info)
    prices = ModelPrices(cost, budget.block_bytes)
    memory = _memory(program, layout, budget, key_space, scheduler, runtime, info, prices)
    grammars = GrammarStore(compiler)
    executor = _executor(program, weights, memory, compute, rope_positions, valid_vocab, grammars)
    memory.storage.populate(after_s=POPULATE_AFTER_S if serves else 0.0)
    proposer = _proposer(runtime, draft, budget, compute)
    core = _core(scheduler, memory, executor, prices, proposer)
    client = EngineThread(core, info, memory.doorbell, grammars)
    return Engine(client, *text, ends, cost)


def _draft(loading: Loading, runtime: RuntimeConfig, text: ModelText) -> "DraftFiles | None":
    if not runtime.speculate:  # A start without it imports nothing of it.
        return None
    from kokuban.engine.speculation import open_draft

    return open_draft(runtime, text.tokenizer, loading.name, loading.on_pull)


def _proposer(
    runtime: RuntimeConfig, draft: "DraftFiles | None", budget: KvBudget, compute: Compute
) -> Proposer | None:
    if not runtime.speculate:
        return None
    from kokuban.engine.speculation import make_proposer

    return make_proposer(runtime, draft, budget, **compute._asdict())


def _budget(
    program: Program,
    layout: KvLayout,
    max_positions: int,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    draft: "DraftFiles | None",
) -> KvBudget:
    """The KV pool of this model; a draft model's is part of the same budget."""
    return kv_budget(
        program.kv,
        layout,
        max_positions,
        scheduler,
        runtime,
        share=draft.share(program.kv, runtime) if draft else 1.0,
        taken_bytes=draft.weight_bytes if draft else 0,
    )


def _memory(
    program: Program,
    layout: KvLayout,
    budget: KvBudget,
    key_space: KeySpace | None,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    info: EngineInfo,
    prices: ModelPrices,
) -> KvMemory:
    return make_kv_memory(
        program.kv,
        layout,
        budget,
        key_space=key_space,
        scheduler=scheduler,
        runtime=runtime,
        disk_root=runtime.kv_disk_dir or cache_dir() / "kv",
        model=info.model,
        worth=block_worth(prices, layout.block_size),
        debug=debug(),
    )


def _executor(
    program: Program,
    weights: LoadedWeights,
    memory: KvMemory,
    compute: Compute,
    rope_positions: int,
    valid_vocab: int,
    grammars: GrammarStore,
) -> NativeExecutor:
    return NativeExecutor(
        program,
        weights,
        memory.storage,
        host=memory.host,
        pool=compute.pool,
        isa_cap=compute.isa_cap,
        max_context_tokens=memory.budget.max_context_tokens,
        rope_positions=rope_positions,
        valid_vocab=valid_vocab,
        grammars=grammars,
    )


def _key_space(
    source: ModelSource,
    program: Program,
    layout: KvLayout,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    isa: str,
    rope_positions: int,
    text: ModelText,
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
        public=public_token_ids(runtime.public_prefixes, *text),
    )


def _cost(
    program: Program,
    weights: LoadedWeights,
    budget: KvBudget,
    scheduler: SchedulerConfig,
    info: EngineInfo,
) -> CostModel:
    """What computing and moving KV cost here, as `bench machine` measured or as a guess."""
    constants = load_constants(cache_dir(), cpu=cpu_name(), isa=info.isa, threads=info.threads)
    return CostModel(
        program,
        weight_bytes=weights.bytes_by_name,
        kv_bytes_per_token=budget.bytes_per_token,
        constants=constants,
        chunk_tokens=scheduler.token_budget,
    )


def _core(
    config: SchedulerConfig,
    memory: KvMemory,
    executor: NativeExecutor,
    prices: ModelPrices,
    proposer: Proposer | None,
) -> EngineCore:
    scheduler = Scheduler(
        config,
        memory.manager,
        max_context_tokens=memory.budget.max_context_tokens,
        prices=prices,
        proposer=proposer,
    )
    return EngineCore(
        scheduler,
        memory.manager,
        executor,
        SystemClock(),
        log=memory.log,
        disk=memory.disk,
        proposer=proposer,
        debug=debug(),
    )


def _info(
    name: str,
    config: ModelConfig,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    budget: KvBudget,
    compute: Compute,
) -> EngineInfo:
    return EngineInfo(
        model=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context_tokens=budget.max_context_tokens,
        block_size=scheduler.block_size,
        num_blocks=budget.num_blocks,
        bytes_per_token=budget.bytes_per_token,
        kv_pool_bytes=budget.pool_bytes,
        num_kv_tokens=budget.num_tokens,
        requests_at_full_length=budget.requests_at_full_length,
        kv_dtype=runtime.kv_dtype,
        threads=compute.threads,
        isa=compute.isa,
        token_budget=scheduler.token_budget,
        prefix_cache=scheduler.prefix_cache,
        speculate=runtime.speculate,
    )
