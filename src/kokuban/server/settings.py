"""What the operator chose about the HTTP side, and what the server is handed to serve."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kokuban.core.errors import ConfigError
from kokuban.core.pooling import Pooling
from kokuban.text.call_styles import STYLES

if TYPE_CHECKING:
    from kokuban.engine.client import EngineClient
    from kokuban.text.chat import ChatTemplate
    from kokuban.text.tokenizer import Tokenizer

TOOL_PARSERS = ("auto", "none", *STYLES)
REASONING_PARSERS = ("auto", "none", "think")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


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

    api_keys: tuple[str, ...] = ()
    """Any of them opens every route. Each is a tenant of its own in the scheduler."""

    no_auth: bool = False
    """Allow to listen beyond loopback without a key."""

    allowed_hosts: tuple[str, ...] = ()
    """Names that a Host header may hold, beside those of loopback. Empty on an address beyond
    loopback: any. A web page that points its own name at this machine is kept out by it."""

    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API. "*": all, then without credentials."""

    tool_parser: str = "auto"
    """How calls of tools are read: a name of `text.call_styles.STYLES`, "auto": as the chat
    template teaches, or "none": they stay text."""

    reasoning_parser: str = "auto"
    """Whether thoughts between <think> marks are told apart: "think", "none", or "auto": where the
    chat template knows the marks."""

    max_body_bytes: int = 32 * 2**20
    body_timeout_s: float = 60.0
    """Longest time for a client to send its body."""

    drain_s: float = 30.0
    """Time that running requests are given to end after SIGTERM."""

    commit_after_s: float = 2.0
    """A stream's headers wait this long for the first token, so that what goes wrong until then
    has an HTTP status of its own."""

    ping_s: float = 15.0
    """Time without an event after which a stream gets a comment, so that proxies keep it open."""

    pooling: Pooling = "last"
    """How /v1/embeddings makes one vector of a prompt when a client does not say."""

    explain_requests: int = 1024
    """Requests of each tenant that /v1/explain remembers, with their tokens; 0: none."""

    response_store_bytes: int = 64 * 2**20
    """Room for the responses of /v1/responses that clients may come back to; 0: none is kept."""

    response_ttl_s: float = 24 * 3600.0
    """How long one is kept that nobody asks for."""

    max_waiting_requests: int = 4096
    """Length of the engine's queue, at which /ready says no."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.port < 2**16:
            yield f"port={self.port} is not between 0 and 65535"
        for key in self.api_keys:
            if not key or key != key.strip() or not key.isascii() or not key.isprintable():
                yield "an API key must be printable ASCII without blanks at its ends, and not empty"
        if not self.on_loopback and not self.api_keys and not self.no_auth:
            yield (
                f"host={self.host} can be reached from other machines and no key is set; add "
                f"--api-key KEY, or --no-auth to let anybody use this server"
            )
        if self.max_body_bytes < 1:
            yield f"max_body_bytes={self.max_body_bytes} is below 1"
        for name, known in (("tool_parser", TOOL_PARSERS), ("reasoning_parser", REASONING_PARSERS)):
            if getattr(self, name) not in known:
                yield f"{name}={getattr(self, name)!r} is not one of {', '.join(known)}"
        yield from self._out_of_range()

    def _out_of_range(self) -> Iterator[str]:
        for name in ("explain_requests", "response_store_bytes", "drain_s"):
            if getattr(self, name) < 0:
                yield f"{name}={getattr(self, name)} is negative"
        if not self.response_ttl_s > 0:
            yield f"response_ttl_s={self.response_ttl_s} is not above 0"

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    def allows_host(self, host: str) -> bool:
        """Whether a Host header names this server."""
        if not self.on_loopback and not self.allowed_hosts:
            return True
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        name = name.lower()
        known = (*LOOPBACK_NAMES, *(allowed.lower() for allowed in self.allowed_hosts))
        return name in known or (self.on_loopback and name == self.host.lower())
