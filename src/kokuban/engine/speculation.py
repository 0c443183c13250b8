"""Puts together what guesses tokens ahead: see `core.speculation`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kokuban.core.config import RuntimeConfig
from kokuban.core.env import cache_dir
from kokuban.core.speculation import NGRAM, Proposer
from kokuban.engine.kv_memory import make_layout
from kokuban.kernels.merges import find_merges
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.storage import KvStorage
from kokuban.models.registry import build_program
from kokuban.observe.machine import available_memory_bytes, cpu_name
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import load_constants
from kokuban.plan.memory import KvBudget, check_draft_fits, plan_draft_kv, target_share
from kokuban.program.fuse import take_rows_early
from kokuban.program.program import KvSpec, Program
from kokuban.runner.drafter import DraftModel
from kokuban.runner.load import LoadedWeights, load_weights
from kokuban.runner.native import NativeExecutor
from kokuban.scheduler.ngram import NgramProposer
from kokuban.text.load import load_text
from kokuban.text.tokenizer import Tokenizer
from kokuban.text.vocabulary import check_same_vocabulary
from kokuban.weights.progress import Progress as PullProgress
from kokuban.weights.pull import resolve
from kokuban.weights.source import ModelSource, open_source


@dataclass(frozen=True, slots=True)
class DraftFiles:
    """A draft model that was found and fits its target; its weights are not loaded yet."""

    name: str
    source: ModelSource
    program: Program
    valid_vocab: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of its matrices in the file, which is what they take in memory."""
        there = set(self.source.names())
        wanted = [name for name, spec in self.program.weights.items() if spec.matmul]
        return sum(int(self.source.tensor(name).data.nbytes) for name in wanted if name in there)

    def share(self, target: KvSpec, runtime: RuntimeConfig) -> float:
        """The target's share of the KV memory."""
        return target_share(target, self.program.kv, runtime.kv_dtype)


def open_draft(
    runtime: RuntimeConfig,
    target: Tokenizer,
    target_name: str,
    on_pull: PullProgress | None = None,
) -> DraftFiles | None:
    """Find the draft model; None if there is to be none.

    Raises:
        ConfigError: its vocabulary is another than the target's.
        ModelError: it cannot be found, read or run.
    """
    if runtime.speculate in ("", NGRAM):
        return None
    source = open_source(resolve(runtime.speculate, progress=on_pull))
    tokenizer = load_text(source.tokenizer_source(), find_merges).tokenizer
    check_same_vocabulary(target, tokenizer, target_name, runtime.speculate)
    program = take_rows_early(build_program(source.config))
    valid_vocab = min(tokenizer.vocab_size, target.vocab_size, program.vocab_size)
    return DraftFiles(runtime.speculate, source, program, valid_vocab)


def make_proposer(
    runtime: RuntimeConfig,
    draft: DraftFiles | None,
    budget: KvBudget,
    *,
    pool: Any,
    threads: int,
    isa: str,
    isa_cap: int,
) -> Proposer | None:
    """Load what guesses; None if nothing is to.

    Args:
        draft: the model, if it is one.
        budget: of the target's KV pool.
        pool: the native threads of the target: they never compute at the same time.

    Raises:
        ConfigError: there is no memory for the draft model.
    """
    if draft is None:
        return NgramProposer() if runtime.speculate == NGRAM else None
    config, program = draft.source.config, draft.program
    own = plan_draft_kv(
        program.kv, budget, dtype=runtime.kv_dtype, max_context_tokens=config.max_positions
    )
    check_draft_fits(
        draft.name,
        weight_bytes=draft.weight_bytes,
        kv_bytes=own.pool_bytes,
        available_bytes=available_memory_bytes(),
    )
    weights = load_weights(draft.source, program, config, pool=pool, quantize=runtime.quantize)
    executor = _executor(draft, weights, own, runtime, pool, isa_cap)
    cost = CostModel(
        program,
        weight_bytes=weights.bytes_by_name,
        kv_bytes_per_token=own.bytes_per_token,
        constants=load_constants(cache_dir(), cpu=cpu_name(), isa=isa, threads=threads),
    )
    return DraftModel(
        executor,
        _manager(program.kv, own),
        max_context_tokens=own.max_context_tokens,
        decode_s=cost.decode_s,
    )


def _executor(
    draft: DraftFiles,
    weights: LoadedWeights,
    budget: KvBudget,
    runtime: RuntimeConfig,
    pool: Any,
    isa_cap: int,
) -> NativeExecutor:
    layout = make_layout(draft.program.kv, budget.block_size, runtime)
    storage = KvStorage(layout, budget.num_blocks)
    executor = NativeExecutor(
        draft.program,
        weights,
        storage,
        pool=pool,
        isa_cap=isa_cap,
        max_context_tokens=budget.max_context_tokens,
        rope_positions=draft.source.config.max_positions,
        valid_vocab=draft.valid_vocab,
    )
    storage.populate()
    return executor


def _manager(kv: KvSpec, budget: KvBudget) -> Manager:
    """Block tables without a prefix cache: nobody looks for what a draft model computed."""
    windows: Sequence[int | None] = [group.window for group in kv.groups]
    return Manager(BlockPool(budget.num_blocks), block_size=budget.block_size, windows=windows)
