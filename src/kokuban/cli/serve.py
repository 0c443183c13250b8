"""`kokuban serve`: the HTTP server."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kokuban.cli import options
from kokuban.cli.options import DEFAULTS, EngineOptions, open_engine

if TYPE_CHECKING:
    from kokuban.engine.client import EngineInfo
    from kokuban.server.settings import ServerSettings

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="TCP port; 0 picks one.")]
TokenBudget = Annotated[int, typer.Option(help="Tokens computed in one step, over all requests.")]
MaxPrefillTokens = Annotated[
    int | None, typer.Option(help="Most prompt tokens of a step. Default: the token budget.")
]
MaxRunningRequests = Annotated[
    int | None, typer.Option(help=f"Requests in a step. Default: {DEFAULTS.max_running_requests}.")
]
MaxWaitingRequests = Annotated[
    int, typer.Option(help="Length of the queue; beyond it requests get 429.")
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(help="The API's name of the model, MODEL by default; may be repeated."),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(help="Key that clients must send; may be repeated, each a tenant."),
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Listen beyond this machine without a key.")
]
AllowedHost = Annotated[
    list[str] | None, typer.Option(help="Name that a Host header may hold; may be repeated.")
]
CorsOrigin = Annotated[
    list[str] | None, typer.Option(help="Origin of web pages that may call; may be repeated.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse fields of a body that this server does not know.")
]
MaxBodySize = Annotated[str, typer.Option(help="Largest request body.")]
Drain = Annotated[float, typer.Option(help="Seconds that running requests get after SIGTERM.")]


def serve(
    context: typer.Context,
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
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
    no_prefix_cache: options.NoPrefixCache = False,
    served_model_name: ServedModelName = None,
    api_key: ApiKey = None,
    no_auth: NoAuth = False,
    allowed_host: AllowedHost = None,
    cors_origin: CorsOrigin = None,
    strict: Strict = False,
    max_body_size: MaxBodySize = "32MiB",
    drain: Drain = 30.0,
) -> None:
    """Serve a model over HTTP until interrupted, fetching it first if it is not here."""
    given = dict(context.params)  # All of the above, by name.
    settings = _server_settings(given)
    engine_options = EngineOptions(
        served_name=served_model_name[0] if served_model_name else None,
        **{name: given[name] for name in EngineOptions.__slots__ if name in given},
    )
    raise typer.Exit(_run(settings, engine_options))


def _server_settings(given: Mapping[str, Any]) -> "ServerSettings":
    """Raises `ConfigError` for what cannot work."""
    from kokuban.core.config import parse_bytes
    from kokuban.server.settings import ServerSettings

    return ServerSettings(
        host=given["host"],
        port=given["port"],
        api_keys=tuple(given["api_key"] or ()),
        no_auth=given["no_auth"],
        allowed_hosts=tuple(given["allowed_host"] or ()),
        cors_origins=tuple(given["cors_origin"] or ()),
        strict=given["strict"],
        model_aliases=tuple(given["served_model_name"] or ())[1:],
        max_body_bytes=parse_bytes(given["max_body_size"]),
        drain_s=given["drain"],
        max_waiting_requests=given["max_waiting_requests"],
    )


def _run(settings: "ServerSettings", engine_options: EngineOptions) -> int:
    """Load, serve, close; returns the exit code."""
    from kokuban.core.env import log_level
    from kokuban.observe.logs import set_up_logging
    from kokuban.server.listen import bind, url_of

    set_up_logging(log_level())
    with bind(settings) as sock, open_engine(engine_options, _import_server) as engine:
        from kokuban.server.run import run_server

        url = url_of(sock)

        def on_ready() -> None:
            typer.echo(describe(engine.client.info))
            typer.echo(f"ready at {url}  (API: {url}/v1, page: {url}/)")

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
