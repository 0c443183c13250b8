"""What the operator chose about the HTTP side, and what the server is handed to serve."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.engine.client import EngineClient
    from kokuban.text.chat import ChatTemplate
    from kokuban.text.tokenizer import Tokenizer

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

    strict: bool = False
    """Refuse fields that nobody here knows, instead of naming them in a header."""

    model_aliases: tuple[str, ...] = ()
    """Further names of the model, for clients that ask for a fixed one."""

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

    explain_requests: int = 1024
    """Requests of each tenant that /v1/explain remembers, with their tokens; 0: none."""

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
        for alias in self.model_aliases:
            if not alias or not alias.isprintable():
                yield f"the model name {alias!r} is empty or cannot be printed"
        if self.max_body_bytes < 1:
            yield f"max_body_bytes={self.max_body_bytes} is below 1"
        if self.explain_requests < 0:
            yield f"explain_requests={self.explain_requests} is negative"
        if self.drain_s < 0:
            yield f"drain_s={self.drain_s} is negative"

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
