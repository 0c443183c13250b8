"""`kokuban run-batch`: a file of requests, answered into a file of results."""

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from kokuban.cli import options
from kokuban.cli.commands import Argument, Option
from kokuban.cli.options import DEFAULTS, EngineOptions, open_engine
from kokuban.cli.serve import MaxRunningRequests, ServedModelName, TokenBudget
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.engine.engine import Engine
    from kokuban.server.batch.sink import Sink
    from kokuban.server.batch.source import Source

Requests = Annotated[
    Path,
    Argument(metavar="IN.JSONL", help="Requests, one a line, in OpenAI's batch format."),
]
Results = Annotated[
    Path,
    Argument(metavar="OUT.JSONL", help="Results, one a line as they come; kept if it exists."),
]
ModelOption = Annotated[
    str, Option("--model", "-m", help="The model, named as for `kokuban serve`.")
]
MaxBodySize = Annotated[str, Option(help="Longest line.")]
Concurrency = Annotated[
    int | None,
    Option(least=1, help="Requests at the same time. Default: --max-running-requests."),
]
RetryFailed = Annotated[
    bool, Option("--retry-failed", help="Run those again whose result is no success.")
]


def run_batch(
    context: click.Context,
    requests: Requests,
    results: Results,
    model: ModelOption = options.DEFAULT_MODEL,
    served_model_name: ServedModelName = None,
    concurrency: Concurrency = None,
    retry_failed: RetryFailed = False,
    max_body_size: MaxBodySize = "32MiB",
    token_budget: TokenBudget = DEFAULTS.token_budget,
    max_context_tokens: options.MaxContextTokens = 0,
    max_running_requests: MaxRunningRequests = None,
    block_size: options.BlockSize = DEFAULTS.block_size,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    kv_ram: options.KvRam = None,
    kv_disk: options.KvDisk = None,
    kv_disk_dir: options.KvDiskDir = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    no_prefix_cache: options.NoPrefixCache = False,
) -> None:
    """Answer a file of requests, without a socket; a run that was interrupted goes on.

    Exit code 0: every result is a success; 1: some are not; 130 or 143: interrupted.
    """
    given = dict(context.params)  # All of the above, by name.
    raise click.exceptions.Exit(_answer_file(requests, results, EngineOptions.of(given), given))


def _answer_file(
    requests: Path, results: Path, engine_options: EngineOptions, given: Mapping[str, Any]
) -> int:
    """Check both files, answer what has no result yet, tell the outcome; the exit code."""
    from kokuban.core.config import parse_bytes
    from kokuban.server.batch.sink import Sink
    from kokuban.server.batch.source import Source

    source = Source(requests, parse_bytes(given["max_body_size"]))
    concurrency = given["concurrency"] or engine_options.scheduler().max_running_requests
    scan = source.scan()
    _check_apart(requests, results)
    with Sink(results) as sink:
        _check_same_batch(scan.digests, sink)
        if given["retry_failed"]:
            sink.drop_failed()
        code = 0
        if num_left := scan.num_left(sink):
            with open_engine(engine_options) as engine:
                names = tuple(given["served_model_name"] or ())[1:]
                code = _run(engine, source, sink, num_left, concurrency, names)
        num_done = scan.num_lines - scan.num_left(sink)
        click.echo(
            f"{num_done:,} of {scan.num_lines:,} requests have a result in {results}, "
            f"{sink.num_failed:,} of them no success"
            + ("; the same command goes on from here" if code else "")
        )
    return code or int(sink.num_failed > 0)


def _run(
    engine: "Engine",
    source: "Source",
    sink: "Sink",
    num_left: int,
    concurrency: int,
    model_aliases: tuple[str, ...],
) -> int:
    """Answer what is left; returns 0, or the exit code of a run that was interrupted."""
    from kokuban.cli.progress import count_bar
    from kokuban.server.app import create_app
    from kokuban.server.batch.run import Batch
    from kokuban.server.settings import ServerSettings

    settings = ServerSettings(
        explain_requests=0,
        max_body_bytes=source.max_line_bytes,
        model_aliases=model_aliases,
    )
    app = create_app(engine, settings)
    with count_bar("requests", num_left) as advance:
        batch = Batch(
            app,
            engine.client.alive,
            source,
            sink,
            concurrency=concurrency,
            on_result=lambda result: advance(failed=not result.succeeded),
        )
        return asyncio.run(_until_signal(batch.run()))


async def _until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Do the work. A signal ends it in order; then the exit code is the signal's."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not caught:
            raise
        return 128 + caught[0]
    return 0


def _check_apart(requests: Path, results: Path) -> None:
    """Raises `ConfigError` when both are one file."""
    if results.exists() and results.samefile(requests):
        raise ConfigError(f"{results} holds the requests; name another file for the results")


def _check_same_batch(digests: frozenset[bytes], sink: "Sink") -> None:
    """Raises `ConfigError` when the output has results of requests that the input has not."""
    if num_strange := len(sink.digests - digests):
        raise ConfigError(
            f"{sink.path} has {num_strange:,} results whose custom_id is not in the input: it "
            f"belongs to another batch; name another file"
        )
