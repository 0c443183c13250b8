"""`kokuban bench kv-quant`: what each KV dtype costs in quality and gives in memory and time."""

import gc
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from kokuban.cli import options
from kokuban.cli.commands import Option
from kokuban.core.config import KV_DTYPES, KvDtype, RuntimeConfig
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from kokuban.engine.kv_quant import KvFigures, KvQuantConfig


def kv_quant(
    model: options.Model = options.DEFAULT_MODEL,
    text: Annotated[
        Path | None, Option(help="A text file, such as the test part of WikiText-2.")
    ] = None,
    tokens: Annotated[int, Option(least=1, help="Tokens of the text that are scored.")] = 4096,
    window: Annotated[int, Option(least=3, help="Tokens of a window of perplexity.")] = 512,
    prompts: Annotated[int, Option(least=1, help="Prompts continued greedily.")] = 8,
    context: Annotated[int, Option(least=1, help="Tokens in each request's cache.")] = 8192,
    batch: Annotated[int, Option(least=1, help="Requests of a timed step.")] = 8,
    rounds: Annotated[int, Option(least=1, help="Rounds that are timed, after one.")] = 9,
    kv_dtypes: Annotated[str, Option(help="KV dtypes beside bf16.")] = ",".join(KV_DTYPES),
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    json_file: options.JsonFile = None,
) -> None:
    """Measure perplexity, greedy agreement, bytes a token and step time of each KV dtype."""
    runtime = options.EngineOptions(model=model, threads=threads, quantize=quantize).runtime()
    content = _read(text)
    from kokuban.engine.kv_quant import KvQuantConfig

    config = KvQuantConfig(
        dtypes=tuple(cast("KvDtype", name.strip()) for name in kv_dtypes.split(",")),
        num_tokens=tokens,
        window=window,
        num_prompts=prompts,
        context=context,
        batch=batch,
        rounds=rounds,
    )
    _measure(model, runtime, content, config, json_file)


def _measure(
    model: str,
    runtime: RuntimeConfig,
    content: str,
    config: "KvQuantConfig",
    json_file: Path | None,
) -> None:
    from rich.console import Console

    from kokuban.cli.progress import progress_bars
    from kokuban.engine.kv_quant import measure
    from kokuban.engine.trial import load_model

    with progress_bars() as report:
        loaded = load_model(
            model,
            threads=runtime.threads,
            quantize=runtime.quantize,
            on_load=partial(report, "packing weights"),
            on_pull=report,
        )
    gc.enable()
    with Console(stderr=True).status("") as status:
        found = list(measure(loaded, content, config, on_stage=status.update))
    _print(model, loaded.pool.threads, config, found)
    if json_file is not None:
        json_file.write_text(json.dumps(_document(model, config, found), indent=2) + "\n")


def _read(text: Path | None) -> str:
    if text is None:
        raise ConfigError(
            "perplexity needs a text: give a file with --text, such as the test part of WikiText-2"
        )
    try:
        return text.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--text {text} cannot be read: {error}") from error


def _document(model: str, config: "KvQuantConfig", found: list["KvFigures"]) -> dict[str, Any]:
    return {"model": model, **asdict(config), "figures": [asdict(each) for each in found]}


def _print(model: str, threads: int, config: "KvQuantConfig", found: list["KvFigures"]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(
        f"{model}, {threads} threads. Perplexity of {config.num_tokens:,} tokens in windows of "
        f"{config.window}, its change ± one standard error; {config.num_prompts} greedy answers "
        f"of {config.answer_tokens} tokens (agree: tokens said alike; same: tokens before the "
        f"first other one); steps of {config.batch} requests at {config.context:,} tokens, "
        f"medians of {config.rounds}"
    )
    console.print(_table(config, found))


def _table(config: "KvQuantConfig", found: list["KvFigures"]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    columns = "KV dtype,bytes/token,share,PPL,change,agree,same,step ms,speed"
    for column in columns.split(","):
        table.add_column(column, justify="right")
    base = found[0]
    for each in found:
        table.add_row(
            each.dtype,
            f"{each.bytes_per_token:,}",
            f"{each.bytes_per_token / base.bytes_per_token:.1%}",
            f"{each.perplexity:.4f}",
            f"{each.change:+.2%} ± {each.change_error:.2%}",
            f"{each.agreement:.1%}",
            f"{each.common_tokens:.1f}",
            f"{each.step_s * 1e3:.1f}",
            f"{each.speedup:.2f}x",
        )
    return table
