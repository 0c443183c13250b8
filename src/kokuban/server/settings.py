"""What the operator chose about the HTTP side, and what the server is handed to serve."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kokuban.core.errors import ConfigError
from kokuban.core.pooling import Pooling
from kokuban.server.hosts import is_loopback, plain_name, split_host
from kokuban.text.call_styles import STYLES

if TYPE_CHECKING:
    from kokuban.engine.client import EngineClient
    from kokuban.text.chat import ChatTemplate
    from kokuban.text.tokenizer import Tokenizer

TOOL_PARSERS = ("auto", "none", *STYLES)
REASONING_PARSERS = ("auto", "none", "think")
LOG_FORMATS = ("text", "json")
MIN_TIMEOUT_S = 0.01

_NOT_NEGATIVE = (
    "explain_requests",
    "response_store_bytes",
    "response_ttl_s",
    "drain_s",
    "request_timeout_s",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrent",
)


class ServedModel(Protocol):
    """An engine with its text side: what `engine.build.build_engine` returns."""

    @property
    def client(self) -> "EngineClient": ...
    @property
    def tokenizer(self) -> "Tokenizer": ...
    @property
    def chat_template(self) -> "ChatTemplate": ...
    @property
    def end_token_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Checked at construction; the error lists every problem at once."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose one."""

    uds: str | None = None
    """Path of a Unix socket to listen on instead, for the owner of this process only."""

    ssl_certfile: str | None = None
    """With a key, TLS: certificates in PEM, this server's first. Read again when they change."""

    ssl_keyfile: str | None = None

    api_keys: tuple[str, ...] = ()
    """Each may infer and read metrics, and is a tenant of its own in the scheduler."""

    admin_keys: tuple[str, ...] = ()
    """Each may do everything, and is a tenant as well."""

    api_key_file: str | None = None
    """More keys, with scopes and limits; see `keys`."""

    no_auth: bool = False
    """Allow to listen beyond loopback without a key."""

    allowed_hosts: tuple[str, ...] = ()
    """Names that a Host header may hold, beside those of loopback. Empty on an address beyond
    loopback: any. A web page that points its own name at this machine is kept out by it."""

    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API. "*": all, then without credentials."""

    strict: bool = False
    """Refuse fields that nobody here knows, instead of naming them in a header."""

    model_aliases: tuple[str, ...] = ()
    """Further names of the model, for clients that ask for a fixed one."""

    tool_parser: str = "auto"
    """How calls of tools are read: a name of `text.call_styles.STYLES`, "auto": as the chat
    template teaches, or "none": they stay text."""

    reasoning_parser: str = "auto"
    """Whether thoughts between <think> marks are told apart: "think", "none", or "auto": where the
    chat template knows the marks."""

    max_body_bytes: int = 32 * 2**20
    body_timeout_s: float = 60.0
    """Longest time for a client to send its body."""

    header_timeout_s: float = 10.0
    """Longest time for a client to send the head of a request, and to make a connection of use."""

    request_timeout_s: float = 0.0
    """Longest time from a request's arrival to its answer's last byte; 0: no limit."""

    slow_client_s: float = 30.0
    """Time in which a client that has let its buffers fill must read on, or it is cut off."""

    max_connections: int = 4096
    """Open connections; one more is told 503 and closed."""

    requests_per_minute: float = 0.0
    """Of each key that has no limit of its own, or of everybody without keys; 0: no limit."""

    tokens_per_minute: float = 0.0
    """The same for tokens, those of prompts and those of answers together."""

    max_concurrent: int = 0
    """The same for requests that are being answered or wait for it."""

    drain_s: float = 30.0
    """Time that running requests are given to end after SIGTERM."""

    commit_after_s: float = 2.0
    """A stream's headers wait this long for the first token, so that what goes wrong until then
    has an HTTP status of its own."""

    ping_s: float = 15.0
    """Time without an event after which a stream gets a comment, so that proxies keep it open."""

    pooling: Pooling = "last"
    """How /v1/embeddings makes one vector of a prompt when a client does not say."""

    log_format: str = "text"
    """How log lines look: see `LOG_FORMATS`."""

    vllm_metrics: bool = False
    """Whether /metrics has vLLM's names beside ours."""

    otlp_traces_endpoint: str | None = None
    """Where spans go, see `tracing`; None: nowhere."""

    explain_requests: int = 1024
    """Requests of each tenant that /v1/explain remembers, with their tokens; 0: none."""

    response_store_bytes: int = 64 * 2**20
    """Room for the responses of /v1/responses that clients may come back to; 0: none is kept."""

    response_ttl_s: float = 24 * 3600.0
    """How long one is kept that nobody asks for."""

    keep_billing_line: bool = False
    """Whether the line that Claude Code changes with every request stays in its system prompt."""

    max_waiting_requests: int = 4096
    """Length of the engine's queue, at which /ready says no."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.port < 2**16:
            yield f"port={self.port} is not between 0 and 65535"
        for key in (*self.api_keys, *self.admin_keys):
            if not key or key != key.strip() or not key.isascii() or not key.isprintable():
                yield "an API key must be printable ASCII without blanks at its ends, and not empty"
        if not self.on_loopback and not self.has_keys and not self.no_auth:
            yield (
                f"host={self.host} can be reached from other machines and no key is set; add "
                f"--api-key KEY, or --no-auth to let anybody use this server"
            )
        if len(keys := (*self.api_keys, *self.admin_keys)) != len(set(keys)):
            yield "an API key is given twice"
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            yield "TLS needs both --ssl-certfile and --ssl-keyfile"
        yield from self._wrong_words()
        yield from self._wrong_numbers()

    def _wrong_words(self) -> Iterator[str]:
        for name, known in (
            ("tool_parser", TOOL_PARSERS),
            ("reasoning_parser", REASONING_PARSERS),
            ("log_format", LOG_FORMATS),
        ):
            if getattr(self, name) not in known:
                yield f"{name}={getattr(self, name)!r} is not one of {', '.join(known)}"

        for alias in self.model_aliases:
            if not alias or not alias.isprintable():
                yield f"the model name {alias!r} is empty or cannot be printed"

    def _wrong_numbers(self) -> Iterator[str]:
        for name in ("max_body_bytes", "max_connections"):
            if getattr(self, name) < 1:
                yield f"{name}={getattr(self, name)} is below 1"
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name}={getattr(self, name)} is negative or no number"
        for name in ("body_timeout_s", "header_timeout_s", "slow_client_s"):
            if not MIN_TIMEOUT_S <= getattr(self, name) < math.inf:
                yield f"{name}={getattr(self, name)} is no time to wait for a client"

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed."""
        return bool(self.api_keys or self.admin_keys or self.api_key_file)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.uds is not None or is_loopback(plain_name(self.host))

    def allows_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        if not self.on_loopback and not self.allowed_hosts:
            return True
        name = plain_name(split_host(host)[0])
        return is_loopback(name) or name in map(plain_name, self.allowed_hosts)
