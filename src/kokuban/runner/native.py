"""Runs steps on the CPU: arrays in, one native call for the body, the head in tiles, then sampling.

The only caller of the native program. Depth 0: `submit` computes, `collect` hands over.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kokuban import _native
from kokuban.core.config import KV_DTYPES
from kokuban.core.request import Request, RequestId
from kokuban.core.step import (
    BlockCopy,
    BlockMove,
    BlockStore,
    Chunk,
    ChunkOutput,
    StepPlan,
    StepResult,
)
from kokuban.kvcache.blocks import num_blocks_for
from kokuban.kvcache.storage import KvStorage
from kokuban.program.program import Program
from kokuban.program.rope import inverse_frequencies
from kokuban.runner.head import HEAD_ROWS, Findings, HeadRow, tiles
from kokuban.runner.inputs import build_input
from kokuban.runner.key_offsets import key_offsets
from kokuban.runner.load import LoadedWeights
from kokuban.runner.logits_memory import empty_logits
from kokuban.runner.lower import Lowering
from kokuban.runner.masks import Grammars, MaskFiller, Wanted
from kokuban.runner.pooling import PromptPool
from kokuban.runner.profile import Profile
from kokuban.runner.rope_tables import RopeTable
from kokuban.runner.rows import Rows
from kokuban.runner.verify import Run, sample_runs
from kokuban.sampling.sampler import Sampler
from kokuban.sampling.state import SamplingState

TILE_ROWS = 512
"""Rows that the body computes at a time: enough to use each unpacked weight often, few enough that
activations stay near the cache."""


class RowState(NamedTuple):
    """What the runner keeps for a running request beside its block tables."""

    request: Request
    sampling: SamplingState
    pool: PromptPool | None
    """None: tokens are sampled."""


class NativeExecutor:
    """Owns the native program, the rows of running requests and the logits' memory.

    Args:
        storage: the KV memory; its layout fits the program's groups.
        host: slots of host memory below it, of the same layout; None without lower tiers.
        pool: native threads; the caller of `submit` is worker 0.
        isa_cap: best instruction set level to use; -1: what there is.
        max_context_tokens: no position at or above it is ever computed.
        rope_positions: the context that the operator or the model allows, before memory cuts it:
            how positions are scaled must not depend on what else runs on a machine.
        valid_vocab: ids that the tokenizer knows; the output matrix may have more rows.
        grammars: finds what was compiled for a request's grammar.
    """

    depth = 0
    _result: StepResult | None = None

    def __init__(
        self,
        program: Program,
        weights: LoadedWeights,
        storage: KvStorage,
        *,
        host: KvStorage | None = None,
        pool: Any,
        isa_cap: int = -1,
        max_context_tokens: int,
        rope_positions: int | None = None,
        valid_vocab: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        layout = storage.layout
        self._storage, self._host, self._block_size = storage, host, layout.block_size
        self._rows, self._masks = Rows[RowState](len(program.kv.groups)), MaskFiller(grammars)
        positions = rope_positions or max_context_tokens
        self._rope_tables = tuple(
            RopeTable(*inverse_frequencies(config, positions), max_context_tokens)
            for config in program.rope_tables
        )
        self._native = _native.Program(
            pool=pool,
            isa=isa_cap,
            block_size=layout.block_size,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            layers_per_group=layout.layers_per_group,
            kv_dtype=KV_DTYPES.index(layout.dtype),
            kv_pool=storage.blocks.reshape(-1),
            tile_rows=TILE_ROWS,
        )
        tables = tuple(table.array for table in self._rope_tables)
        offsets = key_offsets(program, weights.vectors, positions) if layout.rotated else {}
        self._hidden = Lowering(program, weights, tables, self._native, offsets).lower()
        self._program, self._vocab_size = program, program.vocab_size
        vocab = valid_vocab or program.vocab_size
        self._sampler = Sampler(valid_vocab=vocab, pool=pool, isa_cap=isa_cap)
        self._logits = empty_logits(0, self._vocab_size)

    def submit(self, plan: StepPlan) -> None:
        """Compute the step."""
        assert self._result is None, "the result of the step before was not collected"
        self._follow(plan)
        outputs: dict[RequestId, ChunkOutput] = {}
        if plan.chunks:
            head = list(self._head_rows(plan))
            self._masks.begin(self._wanted(plan))
            self._run_body(plan, head)
            outputs = self._run_head(head)
            self._drop_drafts(plan, outputs)
        self._result = StepResult(plan.step, outputs)

    def collect(self) -> StepResult:
        """Hand over what `submit` computed."""
        result = self._result
        assert result is not None, "no step was submitted"
        self._result = None
        return result

    def close(self) -> None:
        """Stop what goes on in the background; memory and threads go with the last reference."""
        self._masks.close()
        self._storage.close()

    def logits(self, plan: StepPlan) -> NDArray[np.float32]:
        """Compute a step and give the logits of every token, [T, V], instead of sampling.

        For tests and for perplexity; the plan is followed as `submit` does.
        """
        self._follow(plan)
        every = [HeadRow(plan.chunks[0], row, 0) for row in range(plan.num_tokens)]
        self._run_body(plan, every)
        return np.concatenate(
            [tile[:, : self._vocab_size].copy() for _, tile in self._tiles(every)]
        )

    def profile(self) -> Profile:
        """Begin to time the operations of steps."""
        return Profile(self._program, self._native)

    def _follow(self, plan: StepPlan) -> None:
        for request_id in plan.ended:
            self._rows.drop(request_id)
        for admission in plan.admitted:
            request = admission.request
            said = admission.output_token_ids
            sampling = SamplingState(request, said, self._masks.constraint(request, said))
            pool = None
            if request.pooling is not None:
                pool = PromptPool(request.pooling, len(request.prompt_token_ids))
            self._rows.add(request.id, RowState(request, sampling, pool))
        for move in plan.moves:
            self._move(move)

    def _wanted(self, plan: StepPlan) -> list[Wanted]:
        """The masks that the step samples with."""
        wanted = []
        for chunk in plan.chunks:
            constraint = self._rows.state(chunk.request_id).sampling.constraint
            if chunk.samples and constraint is not None:
                wanted.append(Wanted(chunk.request_id, constraint, _drafts(chunk)))
        return wanted

    def _move(self, move: BlockMove) -> None:
        if isinstance(move, BlockCopy):
            self._storage.copy_block(move.source, move.target)
            return
        assert self._host is not None, "a block is moved to or from host memory, and there is none"
        if isinstance(move, BlockStore):
            self._host.block(move.slot)[:] = self._storage.block(move.block)
        else:
            self._storage.block(move.block)[:] = self._host.block(move.slot)

    def _run_body(self, plan: StepPlan, head: Sequence[HeadRow]) -> None:
        arrays = build_input(plan, self._rows, self._block_size)
        for table in self._rope_tables:
            table.fill(int(arrays.positions.max()) + 1)
        self._native.run_body(
            arrays.token_ids,
            arrays.positions,
            arrays.query_start,
            arrays.slots,
            arrays.block_tables,
            np.array([row.row for row in head], np.int32),
        )

    def _head_rows(self, plan: StepPlan) -> Iterator[HeadRow]:
        """Rows that are scored, sampled or pooled, ascending."""
        first = 0
        for chunk in plan.chunks:
            end = first + len(chunk.token_ids)
            request, _, pool = self._rows.state(chunk.request_id)
            if pool is not None:
                ends = chunk.start + end - first == len(request.prompt_token_ids)
                begin = first if request.needs_every_row else end - int(ends)
                for row in range(begin, end):
                    yield HeadRow(chunk, row, None, pool)
            elif request.params.prompt_logprobs is not None:
                following = request.prompt_token_ids[
                    chunk.start + 1 : chunk.start + end - first + 1
                ]
                for i, target in enumerate(following):
                    yield HeadRow(chunk, first + i, target)
            if chunk.samples:
                for row in range(end - 1 - chunk.num_drafts, end):
                    yield HeadRow(chunk, row, None)
            first = end

    def _tiles(
        self, head: Sequence[HeadRow]
    ) -> Iterator[tuple[Sequence[HeadRow], NDArray[np.float32]]]:
        """Run the head on some rows at a time: their logits, or the hidden states of rows that are
        pooled. They hold until the next tile."""
        most = min(len(head), HEAD_ROWS)
        if len(self._logits) < most:
            self._logits = empty_logits(most, self._vocab_size)
        for begin, end in tiles(head, TILE_ROWS):
            if head[begin].pool is None:
                found = self._logits[: end - begin]
                self._native.run_head(begin, end, found)
            else:
                found = np.empty((end - begin, self._hidden[2]), np.float32)
                self._native.run_head_until(self._hidden, begin, end, found)
            yield head[begin:end], found

    def _run_head(self, head: Sequence[HeadRow]) -> dict[RequestId, ChunkOutput]:
        outputs: dict[RequestId, Findings] = {}
        for row in head:
            outputs.setdefault(row.chunk.request_id, Findings())
        for rows, logits in self._tiles(head):
            if rows[0].pool is not None:
                _pool(rows, logits, outputs)
                continue
            sampled = [i for i, row in enumerate(rows) if row.target is None]
            scored = [i for i, row in enumerate(rows) if row.target is not None]
            if scored:
                self._score([rows[i] for i in scored], logits[scored], outputs)
                logits = logits[sampled]
            if sampled:
                self._sample([rows[i] for i in sampled], logits, outputs)
        return {request_id: output.finish() for request_id, output in outputs.items()}

    def _sample(
        self,
        rows: Sequence[HeadRow],
        logits: NDArray[np.float32],
        outputs: Mapping[RequestId, Findings],
    ) -> None:
        runs = self._runs(rows)
        masks = self._masks.rows([(run.request.id, 1 + len(run.drafts)) for run in runs])
        found_runs = sample_runs(self._sampler, logits, runs, masks)
        for run, found in zip(runs, found_runs, strict=True):
            output = outputs[run.request.id]
            for token in [found] if isinstance(found, str) else found:
                output.sampled(token)

    def _runs(self, rows: Sequence[HeadRow]) -> list[Run]:
        """The sampled rows, those of one chunk together."""
        runs, first = [], 0
        while first < len(rows):
            chunk = rows[first].chunk
            state = self._rows.state(chunk.request_id)
            runs.append(Run(first, _drafts(chunk), state.request, state.sampling))
            first += 1 + chunk.num_drafts
        return runs

    def _drop_drafts(self, plan: StepPlan, outputs: Mapping[RequestId, ChunkOutput]) -> None:
        """Cut off the tables what only drafts that were wrong have filled; see `Chunk`."""
        for chunk in plan.chunks:
            if chunk.num_drafts:
                num_computed = chunk.start + len(outputs[chunk.request_id].tokens)
                self._rows.cut(chunk.request_id, num_blocks_for(num_computed, self._block_size))

    def _score(
        self,
        rows: Sequence[HeadRow],
        logits: NDArray[np.float32],
        outputs: Mapping[RequestId, Findings],
    ) -> None:
        params = [self._rows.state(row.chunk.request_id).request.params for row in rows]
        targets = [row.target or 0 for row in rows]
        found = self._sampler.score(logits, targets, [each.prompt_logprobs or 0 for each in params])
        for row, score in zip(rows, found, strict=True):
            outputs[row.chunk.request_id].scored(score)


def _drafts(chunk: Chunk) -> tuple[int, ...]:
    return chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]


def _pool(
    rows: Sequence[HeadRow], hidden: NDArray[np.float32], outputs: Mapping[RequestId, Findings]
) -> None:
    """Give the hidden states of a tile to the pools of their requests."""
    for row, state in zip(rows, hidden, strict=True):
        assert row.pool is not None, "a row with logits among those that are pooled"
        row.pool.add(state)
        if row.pool.is_complete:
            outputs[row.chunk.request_id].pooled(row.pool.vector())
