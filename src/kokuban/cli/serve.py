"""`kokuban serve`: the HTTP server."""

from typing import TYPE_CHECKING, Annotated

import typer

from kokuban.cli import options
from kokuban.cli.options import DEFAULTS, EngineOptions, open_engine

if TYPE_CHECKING:
    from kokuban.engine.client import EngineInfo


def serve(
    model: options.Model = options.DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 picks one.")] = 8000,
    token_budget: Annotated[
        int, typer.Option(help="Tokens computed in one step, over all requests.")
    ] = DEFAULTS.token_budget,
    max_prefill_tokens: Annotated[
        int | None, typer.Option(help="Most prompt tokens of a step. Default: the token budget.")
    ] = None,
    max_context_tokens: options.MaxContextTokens = 0,
    max_running_requests: Annotated[
        int | None,
        typer.Option(help=f"Requests in one step. Default: {DEFAULTS.max_running_requests}."),
    ] = None,
    max_waiting_requests: Annotated[
        int, typer.Option(help="Length of the queue; beyond it requests get 429.")
    ] = DEFAULTS.max_waiting_requests,
    block_size: options.BlockSize = DEFAULTS.block_size,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    served_model_name: Annotated[
        str | None, typer.Option(help="The API's name of the model. Default: MODEL as given.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Key that clients must send; may be repeated, each a tenant."),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen beyond this machine without a key.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Name that a Host header may hold; may be repeated.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of web pages that may call; may be repeated.")
    ] = None,
    max_body_size: Annotated[str, typer.Option(help="Largest request body.")] = "32MiB",
    drain: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM.")
    ] = 30.0,
) -> None:
    """Serve a model over HTTP until interrupted, fetching it first if it is not here."""
    from kokuban.core.config import parse_bytes
    from kokuban.core.env import log_level
    from kokuban.observe.logs import set_up_logging
    from kokuban.server.run import bind, run_server, url_of
    from kokuban.server.settings import ServerSettings

    set_up_logging(log_level())
    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        no_auth=no_auth,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_body_bytes=parse_bytes(max_body_size),
        drain_s=drain,
        max_waiting_requests=max_waiting_requests,
    )
    engine_options = EngineOptions(
        model=model,
        token_budget=token_budget,
        max_prefill_tokens=max_prefill_tokens,
        max_running_requests=max_running_requests,
        max_waiting_requests=max_waiting_requests,
        max_context_tokens=max_context_tokens,
        block_size=block_size,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        served_name=served_model_name,
    )
    with bind(settings) as sock, open_engine(engine_options) as engine:
        url = url_of(sock)

        def on_ready() -> None:
            typer.echo(describe(engine.client.info))
            typer.echo(f"ready at {url}  (API: {url}/v1, page: {url}/)")

        code = run_server(engine, settings, sock, on_ready)
    raise typer.Exit(code)


def describe(info: "EngineInfo") -> str:
    """What the operator should know of the engine that was built, in two lines."""
    num_tokens = info.num_blocks * info.block_size
    pool_mib = num_tokens * info.bytes_per_token / 2**20
    at_full_length = num_tokens // info.max_context_tokens if info.max_context_tokens else 0
    return (
        f"{info.model}: {info.threads} threads, {info.isa}, context {info.max_context_tokens:,} "
        f"tokens\n"
        f"KV pool: {pool_mib:,.0f} MiB = {info.num_blocks:,} blocks of {info.block_size} = "
        f"{num_tokens:,} tokens of {info.bytes_per_token:,} bytes ({info.kv_dtype}); "
        f"{at_full_length:,} requests at full length"
    )
