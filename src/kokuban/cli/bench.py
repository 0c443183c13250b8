"""`kokuban bench`: how fast a model runs here, without HTTP.

latency: B requests of one length start together; prefill and decode are timed apart.
throughput: many requests of one length are queued at once; tokens a second over all of them.
kv-quant: quality, memory and step time of each KV dtype (see `bench_kv`).

Prompts are random ids under a fixed seed and answers run to their full length (ignore_eos), so that
two runs do the same work.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kokuban.cli import options
from kokuban.cli.bench_kv import kv_quant
from kokuban.cli.options import EngineOptions, open_engine
from kokuban.core.errors import ConfigError, StepFailed
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from kokuban.engine.build import Engine

SEED = 20_250_101

bench = typer.Typer(no_args_is_help=True, help="Measure speed on this machine.")
bench.command("kv-quant")(kv_quant)

PromptTokens = Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")]
OutputTokens = Annotated[int, typer.Option(min=2, help="Tokens of each answer.")]


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one request, in seconds from the start of its round."""

    first_s: float
    last_s: float


@bench.command()
def latency(
    model: options.Model = options.DEFAULT_MODEL,
    batch: Annotated[str, typer.Option(help="Numbers of requests at once.")] = "1,2,4,8",
    prompt_tokens: PromptTokens = 512,
    output_tokens: OutputTokens = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are timed, after one.")] = 3,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
) -> None:
    """Time prefill and decode for several batch sizes."""
    sizes = _sizes(batch)
    engine_options = EngineOptions(
        model=model,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
    )
    table = _table("batch", "TTFT ms", "prefill tok/s", "TPOT ms", "decode tok/s")
    with open_engine(engine_options) as engine:
        for size in sizes:
            samples = [
                asyncio.run(_round(engine, size, prompt_tokens, output_tokens, seed))
                for seed in range(1 + rounds)
            ][1:]
            table.add_row(*_latency_row(size, prompt_tokens, output_tokens, samples))
        facts = engine.client.info
    _print(f"{facts.model}, {facts.threads} threads, {facts.isa}: medians of {rounds}", table)


@bench.command()
def throughput(
    model: options.Model = options.DEFAULT_MODEL,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 32,
    prompt_tokens: PromptTokens = 256,
    output_tokens: OutputTokens = 64,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    step_target_ms: options.StepTargetMs = None,
) -> None:
    """Queue many requests at once and count tokens a second."""
    engine_options = EngineOptions(
        model=model,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
        step_target_ms=step_target_ms,
    )
    with open_engine(engine_options) as engine:
        asyncio.run(_round(engine, 1, prompt_tokens, output_tokens, SEED))
        timings = asyncio.run(_round(engine, requests, prompt_tokens, output_tokens, 0))
        facts = engine.client.info
    seconds = max(timing.last_s for timing in timings)
    table = _table("requests", "seconds", "requests/s", "output tok/s", "total tok/s")
    table.add_row(
        str(requests),
        f"{seconds:.2f}",
        f"{requests / seconds:.2f}",
        f"{requests * output_tokens / seconds:.0f}",
        f"{requests * (prompt_tokens + output_tokens) / seconds:.0f}",
    )
    _print(f"{facts.model}, {facts.threads} threads, {facts.isa}", table)


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"batch={text} is no list of numbers above 0, such as 1,2,4")
    return [int(part) for part in parts]


async def _round(
    engine: "Engine", size: int, prompt_tokens: int, output_tokens: int, seed: int
) -> list[Timing]:
    """Run `size` requests at once. Prompts differ between rounds: nothing comes from a cache."""
    draw = random.Random(SEED + seed)
    vocab_size = engine.client.info.vocab_size
    prompts = [[draw.randrange(vocab_size) for _ in range(prompt_tokens)] for _ in range(size)]
    start_s = time.perf_counter()
    return list(
        await asyncio.gather(*(_one(engine, ids, output_tokens, start_s) for ids in prompts))
    )


async def _one(
    engine: "Engine", prompt: Sequence[int], output_tokens: int, start_s: float
) -> Timing:
    from kokuban.engine.generation import generate

    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    first_s = None
    deltas = generate(engine.client, engine.tokenizer, prompt, params)
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.finish is FinishReason.ERROR:
                raise StepFailed(delta.error or "the engine could not finish a request")
            if first_s is None and delta.tokens:
                first_s = time.perf_counter() - start_s
    last_s = time.perf_counter() - start_s
    return Timing(first_s if first_s is not None else last_s, last_s)


def _latency_row(
    size: int, prompt_tokens: int, output_tokens: int, rounds: Sequence[Sequence[Timing]]
) -> list[str]:
    """Medians over the rounds. TPOT is (last - first) / (output tokens - 1), per request."""
    first_s = statistics.median(max(t.first_s for t in timings) for timings in rounds)
    tpot_s = statistics.median(
        statistics.mean((t.last_s - t.first_s) / (output_tokens - 1) for t in timings)
        for timings in rounds
    )
    return [
        str(size),
        f"{first_s * 1e3:.1f}",
        f"{size * prompt_tokens / first_s:.0f}",
        f"{tpot_s * 1e3:.2f}",
        f"{size / tpot_s:.1f}" if tpot_s else "-",
    ]


def _table(*columns: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _print(title: str, table: "Table") -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(title)
    console.print(table)
