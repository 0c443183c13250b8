"""A model on the native executor, driven by hand: chunks, batches, blocks as a test wants them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kokuban.core.config import KvDtype
from kokuban.core.request import BlockId, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import Admission, Chunk, StepPlan
from kokuban.kernels.native import make_threads
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage
from kokuban.models.registry import build_program
from kokuban.program.fuse import take_rows_early
from kokuban.runner.load import load_weights
from kokuban.runner.native import NativeExecutor
from kokuban.weights.source import open_source

Logits = NDArray[np.float32]


class NativeModel:
    """Runs sequences that are known beforehand and gives the logits of every token.

    Blocks are handed out in scattered order and never shared: nothing rests on neighbours.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 1,
        isa_cap: int = -1,
        kv_dtype: KvDtype = "bf16",
        block_size: int = 16,
        num_blocks: int = 512,
        max_context_tokens: int = 1024,
        takes_rows_early: bool = True,
    ) -> None:
        source = open_source(path)
        program = build_program(source.config)
        if takes_rows_early:  # as the engine does
            program = take_rows_early(program)
        pool = make_threads(threads)
        weights = load_weights(source, program, source.config, pool=pool)
        layout = KvLayout(
            block_size=block_size,
            num_kv_heads=program.kv.num_kv_heads,
            head_dim=program.kv.head_dim,
            layers_per_group=len(program.kv.groups[0].layers),
            dtype=kv_dtype,
        )
        self.program, self.weights, self.source = program, weights, source
        self.executor = NativeExecutor(
            program,
            weights,
            KvStorage(layout, num_blocks),
            pool=pool,
            isa_cap=isa_cap,
            max_context_tokens=max_context_tokens,
        )
        self._block_size = block_size
        self._num_groups = len(program.kv.groups)
        order = np.random.default_rng(5).permutation(num_blocks).tolist()
        self._free = [BlockId(block) for block in order]
        self._held: dict[RequestId, int] = {}
        self._ended: list[RequestId] = []
        self._step = 0

    def logits(self, token_ids: Sequence[int], chunk_size: int | None = None) -> Logits:
        """[len(token_ids), V] of one sequence alone, computed `chunk_size` tokens at a time."""
        [found] = self.together([token_ids], chunk_size)
        return found

    def together(
        self, sequences: Sequence[Sequence[int]], chunk_size: int | None = None
    ) -> list[Logits]:
        """The same for several sequences in one batch; a short one ends while others go on."""
        names = [RequestId(f"r{self._step}-{i}") for i in range(len(sequences))]
        found: list[list[Logits]] = [[] for _ in sequences]
        done = 0
        while done < max(map(len, sequences)):
            size = chunk_size or max(map(len, sequences))
            pieces = {
                i: tuple(ids[done : done + size])
                for i, ids in enumerate(sequences)
                if done < len(ids)
            }
            parts = self.step([(names[i], done, piece) for i, piece in pieces.items()])
            for i, part in zip(pieces, parts, strict=True):
                found[i].append(part)
            done += size
        for name in names:
            self.end(name)
        return [np.concatenate(parts) for parts in found]

    def step(self, pieces: Sequence[tuple[RequestId, int, tuple[int, ...]]]) -> list[Logits]:
        """One step over (request, first position, tokens); logits of every token of each piece."""
        chunks = tuple(self._chunk(*piece) for piece in pieces)
        admitted = tuple(
            Admission(Request(id=name, prompt_token_ids=ids, params=SamplingParams()))
            for name, start, ids in pieces
            if start == 0
        )
        plan = StepPlan(self._step, chunks, admitted, ended=tuple(self._ended))
        self._ended.clear()
        self._step += 1
        logits = self.executor.logits(plan)
        ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
        return list(np.split(logits, ends[:-1]))

    def end(self, name: RequestId) -> None:
        """Drop a request's row; its blocks are not used again, as if others had taken them."""
        self._ended.append(name)
        del self._held[name]

    def _chunk(self, name: RequestId, start: int, token_ids: tuple[int, ...]) -> Chunk:
        held = self._held.get(name, 0)
        needed = -(-(start + len(token_ids)) // self._block_size)
        self._held[name] = needed
        new = tuple(
            tuple(self._free.pop() for _ in range(held, needed)) for _ in range(self._num_groups)
        )
        return Chunk(name, start, token_ids, new, samples=True)
