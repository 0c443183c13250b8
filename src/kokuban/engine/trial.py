"""A model driven by hand: requests of a known length over a KV pool of their own, no scheduler.

For measurements that must decide themselves what a step computes. Several trials share one model's
weights and threads.
"""

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kokuban.core.config import KvDtype, Quantize, RuntimeConfig
from kokuban.core.env import max_isa
from kokuban.core.errors import ConfigError, StepFailed
from kokuban.core.request import NO_BLOCK, BlockId, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import Admission, Chunk, ChunkOutput, SampledToken, StepPlan
from kokuban.engine.kv_memory import make_layout
from kokuban.engine.loading import begin_loading
from kokuban.kernels.merges import find_merges
from kokuban.kvcache.blocks import num_blocks_for
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage
from kokuban.observe.machine import available_memory_bytes
from kokuban.program.program import Program
from kokuban.runner.load import LoadedWeights, Progress
from kokuban.runner.native import NativeExecutor
from kokuban.text.load import load_text
from kokuban.text.tokenizer import Tokenizer
from kokuban.weights.progress import Progress as PullProgress

BLOCK_SIZE = 16
SEED = 20_250_101

Tables = tuple[tuple[BlockId, ...], ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What all trials share."""

    program: Program
    weights: LoadedWeights
    tokenizer: Tokenizer
    pool: Any
    """Native threads."""

    max_positions: int


def load_model(
    name: str,
    *,
    threads: int = 0,
    quantize: Quantize = "none",
    on_load: Progress | None = None,
    on_pull: PullProgress | None = None,
) -> Model:
    """Find, read and pack a model.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run.
    """
    runtime = RuntimeConfig(threads=threads, quantize=quantize)
    with begin_loading(name, runtime=runtime, on_load=on_load, on_pull=on_pull) as loading:
        tokenizer = load_text(loading.source.tokenizer_source(), find_merges).tokenizer
        weights = loading.weights()
    max_positions = loading.source.config.max_positions
    return Model(loading.program, weights, tokenizer, loading.compute.pool, max_positions)


def _storage(layout: KvLayout, num_blocks: int, what: str) -> KvStorage:
    """Memory for so many blocks, if there is as much."""
    num_bytes = num_blocks * layout.bytes_per_block
    if num_bytes > available_memory_bytes():
        raise ConfigError(
            f"{what} tokens take {num_bytes:,} bytes of KV in {layout.dtype}, more than is free; "
            f"use fewer requests or tokens"
        )
    return KvStorage(layout, num_blocks)


def _tables(blocks: Iterator[int], total: int, hidden: Sequence[int]) -> Tables:
    """Block tables of one request; the first entries of a group may be hidden behind its window."""
    return tuple(
        (*[NO_BLOCK] * count, *(BlockId(next(blocks)) for _ in range(total - count)))
        for count in hidden
    )


class Trial:
    """Requests that begin together, one after another batch of them.

    Args:
        num_requests: most that run at once.
        num_tokens: most of one request.
        first_token: position of the first token that a request computes; what lies wholly behind a
            window by then gets no memory.

    Raises:
        ConfigError: there is not so much memory.
    """

    def __init__(
        self,
        model: Model,
        kv_dtype: KvDtype,
        *,
        num_requests: int,
        num_tokens: int,
        first_token: int = 0,
    ) -> None:
        kv = model.program.kv
        layout = make_layout(kv, BLOCK_SIZE, RuntimeConfig(kv_dtype=kv_dtype))
        total = num_blocks_for(num_tokens, BLOCK_SIZE)
        hidden = [
            max(0, first_token + 1 - group.window) // BLOCK_SIZE if group.window else 0
            for group in kv.groups
        ]
        num_blocks = num_requests * sum(total - count for count in hidden)
        self._storage = _storage(layout, num_blocks, f"{num_requests} requests of {num_tokens}")
        blocks = iter(np.random.default_rng(SEED).permutation(num_blocks).tolist())
        self._tables = [_tables(blocks, total, hidden) for _ in range(num_requests)]
        self._executor = NativeExecutor(
            model.program,
            model.weights,
            self._storage,
            pool=model.pool,
            isa_cap=max_isa(),
            max_context_tokens=num_tokens,
            rope_positions=model.max_positions,
            valid_vocab=min(model.tokenizer.vocab_size, model.program.vocab_size),
        )
        self._no_blocks: Tables = ((),) * len(kv.groups)
        self._vocab_size = model.tokenizer.vocab_size
        self._first_token = self._position = first_token
        self._names: list[RequestId] = []
        self._num_steps = 0

    def score(self, token_ids: Sequence[int]) -> tuple[SampledToken, ...]:
        """How likely each token but the first is, and with it the token that is likeliest there."""
        params = SamplingParams(max_tokens=0, prompt_logprobs=1)
        [output] = self._begin([token_ids], params, samples=False)
        return output.prompt_logprobs

    def answer(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Continue prompts greedily, all at once, for so many tokens whatever they are."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        outputs = self._begin(prompts, params)
        answers = [[output.tokens[0].token_id] for output in outputs]
        for _ in range(num_tokens - 1):
            outputs = self._run(
                Chunk(
                    name,
                    len(prompt) + len(answer) - 1,
                    (answer[-1],),
                    self._no_blocks,
                    samples=True,
                )
                for name, prompt, answer in zip(self._names, prompts, answers, strict=True)
            )
            for answer, output in zip(answers, outputs, strict=True):
                answer.append(output.tokens[0].token_id)
        return answers

    def start_anywhere(self) -> None:
        """Begin every request at `first_token`, over a cache of random numbers."""
        layout = self._storage.layout
        shape = (2, layout.layers_per_group, layout.num_kv_heads, BLOCK_SIZE, layout.head_dim)
        k, v = np.random.default_rng(SEED).standard_normal(shape, np.float32)
        self._storage.blocks[:] = layout.pack(k, v)
        self._draw = random.Random(SEED)
        params = SamplingParams(temperature=0, max_tokens=1)
        self._begin([[0]] * len(self._tables), params)

    def time_step(self) -> float:
        """Seconds for the next token, a random one, of every request."""
        self._position += 1
        chunks = [
            Chunk(
                name,
                self._position,
                (self._draw.randrange(self._vocab_size),),
                self._no_blocks,
                samples=True,
            )
            for name in self._names
        ]
        start_s = time.perf_counter()
        self._run(chunks)
        return time.perf_counter() - start_s

    def _begin(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, samples: bool = True
    ) -> list[ChunkOutput]:
        """End the requests before, and compute the prompts of new ones."""
        ended = tuple(self._names)
        self._names = [RequestId(f"{self._num_steps}-{i}") for i in range(len(prompts))]
        pairs = list(zip(self._names, map(tuple, prompts), strict=True))
        return self._run(
            (
                Chunk(name, self._first_token, prompt, tables, samples=samples)
                for (name, prompt), tables in zip(pairs, self._tables, strict=False)
            ),
            admitted=tuple(
                Admission(Request(id=name, prompt_token_ids=prompt, params=params))
                for name, prompt in pairs
            ),
            ended=ended,
        )

    def _run(
        self,
        chunks: Iterable[Chunk],
        *,
        admitted: tuple[Admission, ...] = (),
        ended: tuple[RequestId, ...] = (),
    ) -> list[ChunkOutput]:
        plan = StepPlan(self._num_steps, tuple(chunks), admitted, ended)
        self._num_steps += 1
        self._executor.submit(plan)
        outputs = self._executor.collect().outputs
        for output in outputs.values():
            if output.error is not None:
                raise StepFailed(output.error)
        return [outputs[chunk.request_id] for chunk in plan.chunks]
