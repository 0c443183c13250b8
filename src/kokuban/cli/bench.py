"""`kokuban bench`: how fast things are here. What the commands do is in `kokuban.bench`.

latency: few requests that start together; the first token and the tokens after it.
throughput: the same with more requests, as rates.
kernels, machine, serve, kv-quant: see the modules beside this one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kokuban.cli import options
from kokuban.cli.commands import Option
from kokuban.cli.options import EngineOptions, open_engine
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.bench.offline import SizeFigures, Work
    from kokuban.bench.stats import Rounds
    from kokuban.engine.client import EngineInfo

Batch = Annotated[str, Option(help="Numbers of requests that start together.")]
PromptTokens = Annotated[int, Option(least=1, help="Tokens of each prompt.")]
OutputTokens = Annotated[int, Option(least=2, help="Tokens of each answer.")]
RoundCount = Annotated[int, Option(least=1, help="Rounds that are timed, after one.")]


def latency(
    model: options.Model = options.DEFAULT_MODEL,
    batch: Batch = "1",
    prompt_tokens: PromptTokens = 512,
    output_tokens: OutputTokens = 64,
    rounds: RoundCount = 5,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    json_file: options.JsonFile = None,
) -> None:
    """Time the first token and those after it, for one request or a few."""
    works = _works(batch, prompt_tokens, output_tokens)
    engine_options = EngineOptions(
        model=model,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
    )
    found, info = _run(engine_options, works, rounds)
    columns = {
        "TTFT ms": ("ttft_s", 1e3, 1),
        "prefill tok/s": ("prefill_tok_s", 1, 0),
        "prefill % of limit": ("prefill_of_limit", 100, 0),
        "TPOT ms": ("tpot_s", 1e3, 2),
        "decode tok/s": ("decode_tok_s", 1, 1),
        "decode % of limit": ("decode_of_limit", 100, 0),
    }
    _tell(info, works, rounds, found, columns, json_file)


def throughput(
    model: options.Model = options.DEFAULT_MODEL,
    batch: Batch = "1,2,4,8,16,32,64",
    prompt_tokens: PromptTokens = 128,
    output_tokens: OutputTokens = 64,
    rounds: RoundCount = 5,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    step_target_ms: options.StepTargetMs = None,
    json_file: options.JsonFile = None,
) -> None:
    """Count tokens a second of more and more requests at once."""
    works = _works(batch, prompt_tokens, output_tokens)
    engine_options = EngineOptions(
        model=model,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
        step_target_ms=step_target_ms,
    )
    found, info = _run(engine_options, works, rounds)
    columns = {
        "seconds": ("seconds", 1, 2),
        "prefill tok/s": ("prefill_tok_s", 1, 0),
        "prefill % of limit": ("prefill_of_limit", 100, 0),
        "decode tok/s": ("decode_tok_s", 1, 1),
        "decode % of limit": ("decode_of_limit", 100, 0),
        "output tok/s": ("output_tok_s", 1, 1),
        "total tok/s": ("total_tok_s", 1, 0),
    }
    _tell(info, works, rounds, found, columns, json_file)


def _works(batch: str, prompt_tokens: int, output_tokens: int) -> list["Work"]:
    from kokuban.bench.offline import Work

    return [
        Work(size=size, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        for size in sizes(batch)
    ]


def sizes(text: str) -> list[int]:
    """Raises `ConfigError` for what is no list of numbers above 0."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"batch={text} is no list of numbers above 0, such as 1,2,4")
    return [int(part) for part in parts]


def _run(
    engine_options: EngineOptions, works: Sequence["Work"], rounds: int
) -> tuple[list["SizeFigures"], "EngineInfo"]:
    from kokuban.bench.limits import limits_of
    from kokuban.bench.offline import OfflineBench
    from kokuban.cli.progress import count_bar

    with open_engine(engine_options) as engine:
        with count_bar("rounds", len(works) * (1 + rounds)) as advance:
            found = asyncio.run(OfflineBench(engine, limits_of(engine)).run(works, rounds, advance))
        return found, engine.client.info


def _tell(
    info: "EngineInfo",
    works: Sequence["Work"],
    rounds: int,
    found: Sequence["SizeFigures"],
    columns: Mapping[str, tuple[str, float, int]],
    json_file: Path | None,
) -> None:
    """Print a table, and write a file if one is wanted."""
    from rich.console import Console

    from kokuban.bench.facts import facts, write_json
    from kokuban.bench.offline import FORMULAS
    from kokuban.bench.stats import SPREAD_RULE

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{info.model}, {info.threads} threads, {info.isa}, KV {info.kv_dtype}: "
        f"{works[0].prompt_tokens} prompt and {works[0].output_tokens} output tokens, "
        f"medians of {rounds} rounds, ± spread"
    )
    console.print(_table(found, columns))
    for name, _, _ in columns.values():
        console.print(f"{name}: {FORMULAS[name]}", style="dim")
    console.print(f"± {SPREAD_RULE}", style="dim")
    for each in found:
        if each.preemptions:
            console.print(
                f"at {each.size} requests {each.preemptions} were preempted: the KV pool is too "
                f"small for them, give more with --kv-memory"
            )
    if json_file is not None:
        document = {
            "facts": facts(),
            "engine": asdict(info),
            "settings": {"rounds": rounds, "works": [asdict(work) for work in works]},
            "formulas": FORMULAS | {"spread": SPREAD_RULE},
            "figures": [asdict(each) for each in found],
        }
        write_json(json_file, document)


def _table(found: Sequence["SizeFigures"], columns: Mapping[str, tuple[str, float, int]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("batch", *columns):
        table.add_column(column, justify="right")
    for each in found:
        table.add_row(
            str(each.size),
            *(
                cell(each.figures[name], factor, places)
                for name, factor, places in columns.values()
            ),
        )
    return table


def cell(figure: "Rounds | None", factor: float, places: int) -> str:
    """Median and spread; a dash where nothing could be measured."""
    if figure is None:
        return "-"
    return f"{figure.median * factor:,.{places}f} ±{figure.spread:.0%}"
