"""`kokuban serve`: the HTTP server."""

from typing import TYPE_CHECKING, Annotated

import click

from kokuban.cli import options
from kokuban.cli.commands import Option, with_options
from kokuban.cli.http_options import HttpOptions, server_settings
from kokuban.cli.options import DEFAULTS, EngineOptions, open_engine

if TYPE_CHECKING:
    from kokuban.engine.client import EngineInfo
    from kokuban.server.settings import ServerSettings

Host = Annotated[str, Option(help="Address to listen on.")]
Port = Annotated[int, Option(help="TCP port; 0 picks one.")]
TokenBudget = Annotated[int, Option(help="Tokens computed in one step, over all requests.")]
MaxPrefillTokens = Annotated[
    int | None, Option(help="Most prompt tokens of a step. Default: the token budget.")
]
MaxRunningRequests = Annotated[
    int | None, Option(help=f"Requests in a step. Default: {DEFAULTS.max_running_requests}.")
]
MaxWaitingRequests = Annotated[int, Option(help="Length of the queue; beyond it requests get 429.")]
ServedModelName = Annotated[
    list[str] | None,
    Option(help="The API's name of the model, MODEL by default; may be repeated."),
]
ToolParser = Annotated[
    str,
    Option(
        help="Form in which the model writes calls of tools: auto, none, hermes, smollm2, llama3, "
        "mistral, gemma or generic."
    ),
]
ReasoningParser = Annotated[
    str, Option(help="Whether thoughts in <think> are told apart: auto, none or think.")
]
PoolingName = Annotated[
    str, Option(help="Default of /v1/embeddings: last (token's hidden state) or mean.")
]


@with_options(HttpOptions)
def serve(
    context: click.Context,
    model: options.Model = options.DEFAULT_MODEL,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_budget: TokenBudget = DEFAULTS.token_budget,
    max_prefill_tokens: MaxPrefillTokens = None,
    step_target_ms: options.StepTargetMs = None,
    max_context_tokens: options.MaxContextTokens = 0,
    max_running_requests: MaxRunningRequests = None,
    max_waiting_requests: MaxWaitingRequests = DEFAULTS.max_waiting_requests,
    block_size: options.BlockSize = DEFAULTS.block_size,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    kv_ram: options.KvRam = None,
    kv_disk: options.KvDisk = None,
    kv_disk_dir: options.KvDiskDir = None,
    public_prefix: options.PublicPrefix = None,
    eviction: options.EvictionPolicy = DEFAULTS.eviction,
    threads: options.Threads = 0,
    engine: options.EngineKind = "thread",
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    no_prefix_cache: options.NoPrefixCache = False,
    served_model_name: ServedModelName = None,
    tool_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    pooling: PoolingName = "last",
    **http_options: object,
) -> None:
    """Serve a model over HTTP until interrupted, fetching it first if it is not here."""
    given = dict(context.params)  # All of the above, by name.
    context.exit(_run(server_settings(given), EngineOptions.of(given)))


def _run(settings: "ServerSettings", engine_options: EngineOptions) -> int:
    """Load, serve, close; returns the exit code."""
    from kokuban.core.env import debug, log_level
    from kokuban.observe.logs import set_up_logging
    from kokuban.server.listen import bind, check_files, url_of

    set_up_logging(log_level(), form=settings.log_format, with_texts=debug())
    check_files(settings)
    with bind(settings) as sock, open_engine(engine_options, _import_server) as engine:
        from kokuban.server.run import run_server

        url = url_of(sock, settings)

        def on_ready() -> None:
            click.echo(describe(engine.client.info))
            click.echo(f"ready at {url}  (API: {url}/v1, page: {url}/)")

        return run_server(engine, settings, sock, on_ready)


def _import_server() -> None:
    """Done while the weights are packed: it takes as long as they do."""
    import kokuban.server.run  # noqa: F401


def describe(info: "EngineInfo") -> str:
    """What the operator should know of the engine that was built, in two or three lines."""
    return (
        f"{info.model}: {info.threads} threads, {info.isa}, context {info.max_context_tokens:,} "
        f"tokens\n"
        f"KV pool: {info.kv_pool_bytes / 2**20:,.0f} MiB = {info.num_blocks:,} blocks of "
        f"{info.block_size} = {info.num_kv_tokens:,} tokens of {info.bytes_per_token:,} bytes "
        f"({info.kv_dtype}); {info.requests_at_full_length:,} requests at full length"
        + (f"\nspeculation: {info.speculate}" if info.speculate else "")
    )
