"""`kokuban bench serve`: requests to any OpenAI server, when they are due, and what came back."""

import asyncio
import gc
import math
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from kokuban.cli.bench_limits import check_options
from kokuban.cli.commands import Option
from kokuban.cli.options import check_json
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.bench.jobs import Job
    from kokuban.bench.load import LoadRunner, Run, Target
    from kokuban.bench.report import ServeFigures, Slo
    from kokuban.bench.stats import Distribution

BaseUrl = Annotated[str, Option(help="The server, with or without /v1.")]
ModelName = Annotated[
    str, Option(help="The model's name there. Default: the first that the server lists.")
]
ApiKey = Annotated[str, Option(help="Sent as a bearer token.")]
EndpointName = Annotated[str, Option(help="chat or completions.")]
Arrival = Annotated[str, Option(help="poisson, constant or burst.")]
Rate = Annotated[float, Option(help="Requests a second on average; inf: all at once.")]
BurstSize = Annotated[int, Option(least=1, help="Requests of a burst.")]
Requests = Annotated[int, Option(least=0, help="Requests in all; 0: until --duration.")]
Duration = Annotated[float, Option(help="Seconds in which requests arrive; 0: any.")]
PromptTokens = Annotated[str, Option(help="Tokens of a prompt, or a range like 128:1024.")]
OutputTokens = Annotated[str, Option(help="Tokens of an answer, or a range like 16:256.")]
TokenIds = Annotated[bool, Option("--token-ids", help="Prompts as token ids (completions only).")]
Prompts = Annotated[Path | None, Option(help="Prompts from a text file or JSONL.")]
TraceFile = Annotated[Path | None, Option(help="Replay this trace's lengths and times.")]
Speed = Annotated[float, Option(help="The trace's times pass so many times as fast.")]
IgnoreEos = Annotated[
    bool,
    Option("--ignore-eos/--no-ignore-eos", help="Ask for answers of full length."),
]
Temperature = Annotated[float, Option(help="0 always takes the most likely token.")]
Body = Annotated[str, Option(help="A JSON object of more fields for each request.")]
MaxConcurrency = Annotated[int, Option(least=0, help="Requests at once; 0: any number.")]
Warmup = Annotated[int, Option(least=0, help="Requests before, which do not count.")]
Timeout = Annotated[float, Option(help="Seconds for one answer.")]
Seed = Annotated[int, Option(help="Same seed, same arrivals, lengths and prompts.")]
SloTtft = Annotated[float | None, Option(help="Goodput: most milliseconds of TTFT.")]
SloTpot = Annotated[float | None, Option(help="Goodput: most milliseconds of TPOT.")]
SloE2e = Annotated[float | None, Option(help="Goodput: most milliseconds in all.")]
JsonFile = Annotated[
    Path | None,
    Option("--json", check=check_json, help="Write all figures and requests to this file too."),
]


def serve(
    context: click.Context,
    base_url: BaseUrl = "http://127.0.0.1:8000",
    model: ModelName = "",
    api_key: ApiKey = "",
    endpoint: EndpointName = "chat",
    arrival: Arrival = "poisson",
    rate: Rate = 1.0,
    burst_size: BurstSize = 8,
    requests: Requests = 0,
    duration: Duration = 0.0,
    prompt_tokens: PromptTokens = "128:1024",
    output_tokens: OutputTokens = "16:256",
    token_ids: TokenIds = False,
    prompts: Prompts = None,
    trace: TraceFile = None,
    speed: Speed = 1.0,
    ignore_eos: IgnoreEos = True,
    temperature: Temperature = 0.0,
    body: Body = "{}",
    max_concurrency: MaxConcurrency = 0,
    warmup: Warmup = 1,
    timeout: Timeout = 600.0,
    seed: Seed = 0,
    slo_ttft_ms: SloTtft = None,
    slo_tpot_ms: SloTpot = None,
    slo_e2e_ms: SloE2e = None,
    json_file: JsonFile = None,
) -> None:
    """Send requests to an OpenAI server when they are due, and time the answers."""
    from kokuban.bench.report import Slo

    given = dict(context.params)  # All of the above, by name.
    check_options(given)
    jobs, warmups = _jobs(given)
    target = _target(given)
    run = asyncio.run(_measure(target, jobs, warmups, max_concurrency))
    _tell(given, target, run, Slo(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms, e2e_ms=slo_e2e_ms))
    if any(outcome.error for outcome in run.outcomes):
        raise click.exceptions.Exit(1)


def _jobs(given: Mapping[str, Any]) -> tuple[list["Job"], list["Job"]]:
    """What is sent and timed, and what is sent before.

    Raises:
        ConfigError: options that do not go together, or a file that cannot be read.
    """
    from kokuban.bench.jobs import file_jobs, parse_lengths, random_jobs, trace_jobs
    from kokuban.bench.protocol import check_endpoint, check_job

    endpoint = check_endpoint(given["endpoint"])
    token_ids = given["token_ids"]
    draw = random.Random(given["seed"])
    prompt_lengths = parse_lengths("--prompt-tokens", given["prompt_tokens"])
    output_lengths = parse_lengths("--output-tokens", given["output_tokens"])
    if given["trace"] is not None:
        if given["prompts"] is not None or given["duration"]:
            raise ConfigError("--trace has prompts and times of its own: leave out --prompts and "
                              "--duration; --requests cuts it")  # fmt: skip
        jobs = trace_jobs(
            given["trace"], limit=given["requests"], speed=given["speed"], token_ids=token_ids
        )
    else:
        times = _times(given, draw)
        if given["prompts"] is not None:
            jobs = file_jobs(given["prompts"], times, output_lengths, draw=draw)
        else:
            jobs = random_jobs(
                times, prompt_lengths, output_lengths, token_ids=token_ids, draw=draw
            )
    for job in jobs:
        check_job(endpoint, job)
    warmups = random_jobs(
        [0.0] * given["warmup"], prompt_lengths, output_lengths, token_ids=token_ids, draw=draw
    )
    return jobs, warmups


def _times(given: Mapping[str, Any], draw: random.Random) -> list[float]:
    from kokuban.bench.arrivals import arrival_times, check_process, schedule

    rate = given["rate"]
    times = arrival_times(
        check_process(given["arrival"]), rate, burst_size=given["burst_size"], draw=draw
    )
    found = schedule(times, num_requests=given["requests"], duration_s=given["duration"])
    if not found:
        raise ConfigError(
            f"no request arrives in --duration {given['duration']:g} at --rate {rate:g}"
        )
    return found


def _target(given: Mapping[str, Any]) -> "Target":
    from kokuban.bench.connection import parse_address
    from kokuban.bench.load import Target
    from kokuban.bench.protocol import check_encodable, check_endpoint, parse_extra

    extra = parse_extra(given["body"])
    address = parse_address(given["base_url"])
    fields = {"temperature": given["temperature"]}
    if given["ignore_eos"]:
        fields["ignore_eos"] = True
    model = given["model"] or _first_model(given["base_url"], given["api_key"])
    check_encodable("--model", model)
    return Target(
        address=address,
        model=model,
        endpoint=check_endpoint(given["endpoint"]),
        api_key=given["api_key"],
        extra=fields | extra,
        timeout_s=given["timeout"],
    )


def _first_model(base_url: str, api_key: str) -> str:
    from kokuban.bench.connection import first_model

    return asyncio.run(first_model(base_url, api_key))


async def _measure(
    target: "Target", jobs: list["Job"], warmups: list["Job"], max_concurrency: int
) -> "Run":
    """Warm up, then run; with a bar where somebody looks."""
    from kokuban.bench.load import LoadRunner
    from kokuban.cli.progress import count_bar

    runner = LoadRunner(target, max_concurrency=max_concurrency)
    try:
        await _warm_up(runner, warmups)
        gc.collect()
        gc.freeze()
        with count_bar("requests", len(jobs)) as advance:
            return await runner.run(jobs, lambda outcome: advance(failed=bool(outcome.error)))
    finally:
        runner.close()


async def _warm_up(runner: "LoadRunner", jobs: list["Job"]) -> None:
    """Raises `ConfigError` when nothing is answered: then the options or the server are wrong."""
    if not jobs:
        return
    outcomes = (await runner.run(jobs)).outcomes
    if all(outcome.error for outcome in outcomes):
        first = outcomes[0]
        raise ConfigError(
            f"the server answers no request of the warm-up: {first.error}: {first.detail}; "
            f"--warmup 0 measures all the same"
        )


def _tell(given: Mapping[str, Any], target: "Target", run: "Run", slo: "Slo") -> None:
    from rich.console import Console

    from kokuban.bench.facts import facts, write_json
    from kokuban.bench.report import document, figures_of

    figures = figures_of(run, slo)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{target.model} at {given['base_url']}, {target.endpoint}")
    for line in summary_lines(figures):
        console.print(line)
    console.print(_table(figures))
    if given["json_file"] is not None:
        hidden = {"api_key": "set" if target.api_key else ""}
        settings = {
            name: str(value) if isinstance(value, Path) or value == math.inf else value
            for name, value in (dict(given) | hidden | {"model": target.model}).items()
        }
        command = _without(target.api_key)
        write_json(given["json_file"], document(facts(command), settings, figures, run))


def _without(secret: str) -> list[str] | None:
    """The words of this command, with the key left out; None: there is none in them."""
    import sys

    return [word.replace(secret, "***") for word in sys.argv] if secret else None


def summary_lines(figures: "ServeFigures") -> list[str]:
    """What is no distribution, and everything that went wrong."""
    lines = [
        f"{figures.answered} of {figures.sent} requests answered in {figures.seconds:.1f} s: "
        f"{figures.requests_s:.2f} requests/s, {figures.output_tok_s:.0f} output tok/s, "
        f"{figures.total_tok_s:.0f} total tok/s; at most {figures.max_running} at once",
        f"tokens: {figures.prompt_tokens:,} prompt ({figures.cached_tokens:,} cached), "
        f"{figures.output_tokens:,} output; {figures.tokens_per_event or 0:.2f} an event; "
        f"client {figures.client_cpu_share:.1%} of a CPU",
    ]
    if figures.within_slo is not None:
        lines.append(
            f"goodput: {figures.within_slo} of {figures.sent} within the SLO, "
            f"{figures.goodput_requests_s:.2f} requests/s, {figures.goodput_tok_s:.0f} output tok/s"
        )
    lines += [
        f"failed: {count} × {kind}: {figures.error_examples[kind]}"
        for kind, count in figures.errors.items()
    ]
    if figures.without_usage:
        lines.append(
            f"{figures.without_usage} answers came without usage: their tokens are counted as "
            f"events with text, which is at most as many"
        )
    if figures.answered and figures.without_cached == figures.answered:
        lines.append("the server does not say how many prompt tokens were cached")
    return lines


def _table(figures: "ServeFigures") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("ms", "mean", "p50", "p90", "p95", "p99", "max", "of"):
        table.add_column(column, justify="left" if column == "ms" else "right")
    for name, found in (
        ("TTFT", figures.ttft_s),
        ("ITL", figures.itl_s),
        ("TPOT", figures.tpot_s),
        ("E2E", figures.e2e_s),
        ("sent late", figures.late_s),
    ):
        table.add_row(name, *_cells(found))
    return table


def _cells(found: "Distribution | None") -> list[str]:
    if found is None:
        return ["-"] * 6 + ["0"]
    values = asdict(found)
    return [
        *(f"{values[name] * 1e3:.2f}" for name in ("mean", "p50", "p90", "p95", "p99", "max")),
        f"{found.count:,}",
    ]
