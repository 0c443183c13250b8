"""Options of `kokuban serve` about who may call and how long the server waits for whom."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from kokuban.cli.commands import Option

if TYPE_CHECKING:
    from kokuban.server.settings import ServerSettings


class HttpOptions:
    """Those that have no place of their own in the command; see `ServerSettings`."""

    api_key: Annotated[
        list[str] | None,
        Option(help="Key that may infer and read metrics; may be repeated, each a tenant."),
    ] = None
    admin_key: Annotated[
        list[str] | None, Option(help="Key that may do everything; may be repeated.")
    ] = None
    api_key_file: Annotated[
        str | None, Option(help="File of keys with scopes and limits, read when it changes.")
    ] = None
    no_auth: Annotated[
        bool, Option("--no-auth", help="Listen beyond this machine without a key.")
    ] = False
    allowed_host: Annotated[
        list[str] | None, Option(help="Name that a Host header may hold; may be repeated.")
    ] = None
    cors_origin: Annotated[
        list[str] | None, Option(help="Origin of web pages that may call; may be repeated.")
    ] = None
    uds: Annotated[str | None, Option(help="Listen on this Unix socket instead of a TCP port.")] = (
        None
    )
    ssl_certfile: Annotated[
        str | None, Option(help="Certificates in PEM: speak TLS. With --ssl-keyfile.")
    ] = None
    ssl_keyfile: Annotated[str | None, Option(help="The certificate's key in PEM.")] = None
    strict: Annotated[
        bool, Option("--strict", help="Refuse fields of a body that nobody here knows.")
    ] = False
    max_body_size: Annotated[str, Option(help="Largest request body.")] = "32MiB"
    response_store: Annotated[
        str, Option(help="Room for responses that clients may come back to; 0: none.")
    ] = "64MiB"
    response_ttl: Annotated[
        float, Option(help="Seconds that a response is kept which nobody asks for.")
    ] = 86_400.0
    keep_billing_line: Annotated[
        bool,
        Option(
            "--keep-billing-line",
            help="Leave Claude Code's changing billing line in its prompts: nothing behind it is "
            "ever found in the cache.",
        ),
    ] = False
    max_connections: Annotated[int, Option(help="Open connections at most.")] = 4096
    requests_per_minute: Annotated[
        float, Option(help="Requests of each key in a minute; 0: no limit.")
    ] = 0.0
    tokens_per_minute: Annotated[
        float, Option(help="Tokens of each key in a minute, in and out; 0: no limit.")
    ] = 0.0
    max_concurrent: Annotated[
        int, Option(help="Requests of each key at the same time; 0: no limit.")
    ] = 0
    max_queue_wait: Annotated[
        float | None,
        Option(help="Seconds that a request waits at most before it begins; else 429."),
    ] = None
    request_timeout: Annotated[
        float, Option(help="Seconds for one answer, waiting included; 0: no limit.")
    ] = 0.0
    header_timeout: Annotated[
        float, Option(help="Seconds for a client to send the head of a request.")
    ] = 10.0
    slow_client_timeout: Annotated[
        float, Option(help="Seconds without reading after which a client is cut off.")
    ] = 30.0
    log_format: Annotated[
        str, Option(help="Form of log lines: text, or json with a field for each value.")
    ] = "text"
    vllm_metrics: Annotated[
        bool, Option("--vllm-metrics", help="Have vLLM's names in /metrics as well.")
    ] = False
    otlp_traces_endpoint: Annotated[
        str | None, Option(help="Where spans go: a URL of OTLP over HTTP, or `console`.")
    ] = None
    drain: Annotated[float, Option(help="Seconds that running requests get after SIGTERM.")] = 30.0


_SAME = (
    "host",
    "port",
    "uds",
    "ssl_certfile",
    "ssl_keyfile",
    "no_auth",
    "strict",
    "keep_billing_line",
    "api_key_file",
    "tool_parser",
    "reasoning_parser",
    "log_format",
    "vllm_metrics",
    "otlp_traces_endpoint",
    "max_connections",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrent",
)
"""Options that are settings of the same name."""


def server_settings(given: Mapping[str, Any]) -> "ServerSettings":
    """The settings that the options of the command name.

    Raises:
        ConfigError: they cannot work.
    """
    from kokuban.core.config import parse_bytes
    from kokuban.core.pooling import parse_pooling
    from kokuban.server.settings import ServerSettings

    return ServerSettings(
        api_keys=tuple(given["api_key"] or ()),
        admin_keys=tuple(given["admin_key"] or ()),
        allowed_hosts=tuple(given["allowed_host"] or ()),
        cors_origins=tuple(given["cors_origin"] or ()),
        model_aliases=tuple(given["served_model_name"] or ())[1:],
        max_body_bytes=parse_bytes(given["max_body_size"]),
        response_store_bytes=parse_bytes(given["response_store"]),
        response_ttl_s=given["response_ttl"],
        request_timeout_s=given["request_timeout"],
        header_timeout_s=given["header_timeout"],
        slow_client_s=given["slow_client_timeout"],
        drain_s=given["drain"],
        pooling=parse_pooling(given["pooling"]),
        max_waiting_requests=given["max_waiting_requests"],
        **{name: given[name] for name in _SAME},
    )
