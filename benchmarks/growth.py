"""How does a step grow with its batch, its context, the queue and the pool?

    python benchmarks/growth.py books
    python benchmarks/growth.py steps smollm2
    python benchmarks/growth.py steps tiny          # a random model of 32K tokens, made for this

`books`: what planning and committing a step of decoders takes, around a model that does nothing, in
CPU time of its thread. One of batch, waiting requests and blocks of the pool changes at a time.

`steps`: what a step of the real engine takes, against batch and context; and the part of it that is
neither the native program nor the sampler: scheduler, arrays, rows, events.

Medians. "growth" is how many times the last line's time this one is, beside how many times its
size: a step that is linear has the two alike, and one that does not depend on the size has 1.
"""

import argparse
import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kokuban.core.config import RuntimeConfig, SchedulerConfig, parse_bytes
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import ChunkOutput, SampledToken, StepPlan, StepResult
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT = 100
KEYS = KeySpace(
    secret=b"growth of a step",
    model_digest=b"none",
    numerics_id="none",
    kv_dtype="bf16",
    block_size=BLOCK_SIZE,
)


class Line(NamedTuple):
    """One size, and what was measured for it, in microseconds."""

    size: int
    times: tuple[float, ...]


def show(title: str, size: str, heads: Sequence[str], lines: Sequence[Line]) -> None:
    """Print a table; growth is that of the first time."""
    print(f"\n{title}")
    print(f"{size:>12}" + "".join(f"{head:>16}" for head in heads) + f"{'growth (size)':>20}")
    for before, line in zip((None, *lines), lines, strict=False):
        cells = "".join(f"{cell:>16,.1f}" for cell in line.times)
        growth = ""
        if before is not None:
            sizes = f"({line.size / before.size:.1f}x)" if before.size else "(from none)"
            growth = f"{line.times[0] / before.times[0]:.2f}x {sizes}"
        print(f"{line.size:>12,}{cells}{growth:>20}")


# Bookkeeping.


def make_request(
    name: str, num_tokens: int, max_tokens: int, first: int = 0, tenant: str = ""
) -> Request:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    ids = tuple(range(first, first + num_tokens))
    return Request(id=RequestId(name), prompt_token_ids=ids, params=params, tenant=tenant)


def said(plan: StepPlan) -> StepResult:
    """What a model finds that always says 5."""
    outputs = {
        chunk.request_id: ChunkOutput((SampledToken(5),)) for chunk in plan.chunks if chunk.samples
    }
    return StepResult(plan.step, outputs)


def fill_pool(scheduler: Scheduler, num_blocks: int) -> None:
    """Run prompts that share nothing until every block of the pool holds something."""
    tokens, first = 4096, 1_000_000
    for index in range(-(-num_blocks * BLOCK_SIZE // tokens) + 1):
        scheduler.add(make_request(f"old{index}", tokens, 1, first + index * tokens), 0.0)
    while (plan := scheduler.plan(0.0)) is not None:
        scheduler.commit(plan, said(plan), 0.0)


def bookkeeping(
    *, batch: int, waiting: int = 0, num_blocks: int = 0, full: bool = False, rounds: int
) -> tuple[float, float, float]:
    """Medians of plan and commit together, of plan and of commit, in us of CPU time.

    Args:
        waiting: requests of 100 tenants that wait because every seat is taken.
        num_blocks: of the pool; 0: as many as are needed.
        full: whether every block holds something that can be found when it begins.
    """
    num_blocks = num_blocks or batch * (PROMPT + rounds + 64) // BLOCK_SIZE + batch
    pool = BlockPool(num_blocks)
    manager = Manager(pool, block_size=BLOCK_SIZE, key_space=KEYS)
    config = SchedulerConfig(
        token_budget=max(2048, batch), max_running_requests=batch, max_waiting_requests=2**20
    )
    scheduler = Scheduler(config, manager, max_context_tokens=1 << 20)
    if full:
        fill_pool(scheduler, num_blocks)
    for index in range(batch):
        scheduler.add(make_request(f"r{index}", PROMPT, rounds + 60, 7 * index), 0.0)
    while scheduler.stats().waiting:
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.commit(plan, said(plan), 0.0)
    for index in range(waiting):  # Now that every seat is taken.
        request = make_request(f"w{index}", 2000, 16, index, tenant=f"tenant{index % 100}")
        scheduler.add(request, 0.0)
    times: list[tuple[int, int]] = []
    while len(times) < rounds:
        begin = time.thread_time_ns()
        plan = scheduler.plan(0.0)
        planned = time.thread_time_ns()
        assert plan is not None
        result = said(plan)
        ran = time.thread_time_ns()
        scheduler.commit(plan, result, 0.0)
        end = time.thread_time_ns()
        if plan.num_tokens == batch == len(plan.chunks):
            times.append((planned - begin, end - ran))
    plans = [plan / 1e3 for plan, _ in times]
    commits = [commit / 1e3 for _, commit in times]
    both = [plan + commit for plan, commit in zip(plans, commits, strict=True)]
    return statistics.median(both), statistics.median(plans), statistics.median(commits)


def books(args: argparse.Namespace) -> None:
    heads = ("us a step", "plan", "commit")
    rounds = args.rounds
    gc.freeze()
    lines = [
        Line(batch, bookkeeping(batch=batch, rounds=rounds))
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ]
    show("bookkeeping against batch", "batch", heads, lines)
    lines = [
        Line(waiting, bookkeeping(batch=32, waiting=waiting, rounds=rounds))
        for waiting in (0, 10, 100, 1_000, 10_000)
    ]
    show("bookkeeping against requests that wait; batch 32", "waiting", heads, lines)
    for full in (False, True):
        lines = [
            Line(size, bookkeeping(batch=32, num_blocks=size, full=full, rounds=rounds))
            for size in (1_024, 4_096, 16_384, 65_536, 262_144)
        ]
        title = "that is full of cached text" if full else "that is empty"
        show(f"bookkeeping against blocks of a pool {title}; batch 32", "blocks", heads, lines)


# Steps.


class Watch:
    """Times of the steps of an engine: of all, and of the native calls in them."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[tuple[int, int, float, float]] = []
        """Chunks, tokens, seconds, and seconds of them in native code."""

        self._native_ns: Counter[str] = Counter()
        core: Any = engine.client._core  # type: ignore[attr-defined]
        executor = core._executor
        self._step, self._submit = core.step, executor.submit
        self._plan: StepPlan | None = None
        executor.submit = self._submitted
        executor._native = _Timed(executor._native, self._native_ns)
        executor._sampler.sample = _timed(executor._sampler.sample, self._native_ns)
        core.step = self._stepped

    def _submitted(self, plan: StepPlan) -> None:
        self._plan = plan
        self._submit(plan)

    def _stepped(self) -> Any:
        self._native_ns.clear()
        self._plan = None
        begin = time.perf_counter_ns()
        events = self._step()
        ns = time.perf_counter_ns() - begin
        if self._plan is not None:
            plan: StepPlan = self._plan
            native_ns = self._native_ns.total()
            self.steps.append((len(plan.chunks), plan.num_tokens, ns * 1e-9, native_ns * 1e-9))
        return events

    def decodes(self, batch: int) -> tuple[float, float, float]:
        """Medians over the steps of so many decoders: ms, us outside of native code, share in %."""
        steps = [
            (s, native) for chunks, tokens, s, native in self.steps if chunks == tokens == batch
        ]
        return (
            statistics.median(s for s, _ in steps) * 1e3,
            statistics.median(s - native for s, native in steps) * 1e6,
            statistics.median((s - native) / s for s, native in steps) * 100,
        )


class _Timed:
    """The native program, with a clock around its two calls."""

    def __init__(self, native: Any, ns: Counter[str]) -> None:
        self.run_body = _timed(native.run_body, ns)
        self.run_head = _timed(native.run_head, ns)


def _timed(call: Any, ns: Counter[str]) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            ns["native"] += time.perf_counter_ns() - begin

    return timed


async def _run(engine: Engine, requests: Sequence[Request]) -> None:
    async def one(request: Request) -> None:
        async for _ in engine.client.submit([request]):
            pass

    await asyncio.gather(*map(one, requests))


def _requests(rng: random.Random, batch: int, context: int, new: int, vocab: int) -> list[Request]:
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    return [
        Request(
            id=RequestId(f"r{index}"),
            prompt_token_ids=tuple(rng.randrange(vocab) for _ in range(context)),
            params=params,
        )
        for index in range(batch)
    ]


def _decode_lines(
    engine: Engine, watch: Watch, sizes: Sequence[tuple[int, int, int]], new: int
) -> Iterator[Line]:
    """For each (size to show, batch, context) one line."""
    rng = random.Random(0)
    for size, batch, context in sizes:
        watch.steps.clear()
        requests = _requests(rng, batch, context, new, min(300, engine.client.info.vocab_size))
        asyncio.run(_run(engine, requests))
        yield Line(size, watch.decodes(batch))


def steps(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = str(make_tiny(Path(directory))) if args.model == "tiny" else args.model
        engine = build_engine(
            model,
            scheduler=SchedulerConfig(prefix_cache=False),
            runtime=RuntimeConfig(
                kv_memory_bytes=parse_bytes(args.kv_memory), threads=args.threads
            ),
        )
        watch, info = Watch(engine), engine.client.info
        print(f"{args.model}, {info.threads} threads, {info.isa}")
        heads = ("ms a step", "us around it", "share %")
        batches = [(batch, batch, PROMPT) for batch in (1, 2, 4, 8, 16, 32, 64)]
        lines = list(_decode_lines(engine, watch, batches, args.new))
        show(f"steps against batch; context {PROMPT}", "batch", heads, lines)
        most = info.max_context_tokens - args.new
        contexts = [(c, 1, min(c, most)) for c in CONTEXTS if c <= info.max_context_tokens]
        lines = list(_decode_lines(engine, watch, contexts, args.new))
        show("steps against context; batch 1", "context", heads, lines)
        engine.close()


CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)


def make_tiny(directory: Path) -> Path:
    """A random llama of 3 layers that takes 32K tokens."""
    from tools.tiny_configs import random_weights, tiny_config
    from tools.tiny_formats import write_tiny_gguf

    config = replace(tiny_config("llama"), max_positions=CONTEXTS[-1])
    return write_tiny_gguf(directory / "tiny.gguf", config, random_weights(config, 0), quant="q8_0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("books")
    command.add_argument("--rounds", type=int, default=60)
    command.set_defaults(run=books)
    command = commands.add_parser("steps")
    command.add_argument("model", nargs="?", default="smollm2")
    command.add_argument("--new", type=int, default=24, help="tokens of each answer")
    command.add_argument("--threads", type=int, default=0)
    command.add_argument("--kv-memory", default="512MiB")
    command.set_defaults(run=steps)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
