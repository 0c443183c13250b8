"""What server process and engine process say to each other: msgpack of typed structs, no pickle.

Values of `core` cross as they are and are checked again where they are read: a field that is added
to one of them crosses too. Both processes are of one installation, so there is one version of the
protocol; `Hello` tells it, for the case that the installation has changed under a running server.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kokuban.core import errors
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import KokubanError, StepFailed
from kokuban.core.request import Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineInfo, EngineStats
from kokuban.kvcache.events import Cursor, Replay

PROTOCOL = 1
"""Counts up with every change of what a message means."""

HIGH_WATER = 64
"""Messages that a socket of the engine holds; what is beyond waits where it is bounded in bytes."""

LENGTH_BYTES = 8
"""In front of `Start`, big-endian."""


class Failure(msgspec.Struct, array_like=True):
    """An error of `core.errors`, by name, with what its attributes hold."""

    kind: str
    message: str
    facts: Mapping[str, str | int | float | bool | None] = {}

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """What the other side can be told of an error; one that is a bug becomes `StepFailed`."""
        kind = type(error).__name__
        if getattr(errors, kind, None) is not type(error):
            return cls(StepFailed.__name__, f"the engine failed: {kind}: {error}")
        return cls(kind, str(error), dict(vars(error)))

    def error(self) -> KokubanError:
        """The error, as it was."""
        kind = getattr(errors, self.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, KokubanError)):
            return StepFailed(self.message)
        error = kind.__new__(kind, self.message)
        vars(error).update(self.facts)
        return error


class Message(msgspec.Struct, array_like=True, tag=True):
    """One of either direction."""


# To the engine.


class Start(msgspec.Struct):
    """The first thing that a child reads, from its standard input."""

    endpoint: str
    token: str
    """Its name on the socket: who does not know it is not listened to."""

    files: Path
    """The model, found already."""

    name: str
    scheduler: SchedulerConfig
    runtime: RuntimeConfig
    log_form: str
    """As the server's own: both write to one stream."""


class Submit(Message):
    """Requests that belong together. Answered by `Accepted` or `Refused`."""

    group: int
    requests: tuple[Request, ...]


class Cancel(Message):
    """Free them at the next step; unknown ones are ignored."""

    request_ids: tuple[RequestId, ...]


class Suspend(Message):
    """Compute no more of them for now, or go on."""

    request_ids: tuple[RequestId, ...]
    begins: bool


class Call(Message):
    """A question; the answer is a `Result` with the same number."""

    number: int
    ask: "Ask"


class Watch(Message):
    """Tell KV events from now on, one `News` at a time."""

    number: int
    since: Cursor | None


class More(Message):
    """The reader of a watch has read: the next `News` may come."""

    number: int


class Unwatch(Message):
    """Nobody reads any more."""

    number: int


class Stop(Message):
    """End after the step that runs."""


class ResetPrefixCache(Message):
    pass


class PauseSession(Message):
    tenant: str
    session: str
    expected_s: float | None
    tools: tuple[str, ...]


class ResumeSession(Message):
    tenant: str
    session: str


class DeleteSession(Message):
    tenant: str
    session: str


class GetSession(Message):
    tenant: str
    session: str


Ask = ResetPrefixCache | PauseSession | ResumeSession | DeleteSession | GetSession
"""What may be asked between two steps; see the methods of `EngineClient`."""

ANSWERS: Mapping[type[Ask], Any] = {
    ResetPrefixCache: int,
    PauseSession: SessionStatus | None,
    ResumeSession: SessionStatus | None,
    DeleteSession: bool,
    GetSession: SessionStatus | None,
}

ToEngine = Submit | Cancel | Suspend | Call | Watch | More | Unwatch | Stop


# To the server.


class Hello(Message):
    """The first message of a child."""

    protocol: int


class Progress(Message):
    """How far something of the start is."""

    what: str
    done_bytes: int
    total_bytes: int


class Ready(Message):
    """The engine takes requests from now on."""

    info: EngineInfo


class StartFailed(Message):
    """There will be no engine."""

    failure: Failure


class Accepted(Message):
    """These groups are queued."""

    groups: tuple[int, ...]


class Refused(Message):
    """None of the group's requests is queued."""

    group: int
    failure: Failure


class Step(Message):
    """What one step brought, all requests together, and how things stand after it."""

    events: tuple[TokenEvent, ...]
    stats: EngineStats


class Heartbeat(Message):
    """Sent while nothing else is, from a thread that no step holds up."""

    stats: EngineStats | None


class Result(Message):
    """The answer to a call: a value of the type in `ANSWERS`, unless it failed."""

    number: int
    value: msgspec.Raw
    failure: Failure | None = None


class News(Message):
    """KV events of a watch; neither replay nor failure: there will be no more."""

    number: int
    replay: Replay | None = None
    failure: Failure | None = None


FromEngine = (
    Hello | Progress | Ready | StartFailed | Accepted | Refused | Step | Heartbeat | Result | News
)


def _simplify(value: Any) -> Any:
    """Types that msgpack does not know."""
    if isinstance(value, Path):
        return bytes(value)
    raise NotImplementedError(f"a {type(value).__name__} does not cross")


def _restore(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value.decode("utf-8", "surrogateescape"))
    raise NotImplementedError(f"a {kind.__name__} does not cross")


_encoder = msgspec.msgpack.Encoder(enc_hook=_simplify)
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)
_start = msgspec.msgpack.Decoder(Start, dec_hook=_restore)


def encode(message: Any) -> bytes:
    """Any message, or the value of a result.

    Raises:
        UnicodeEncodeError, OverflowError: a text is no text, or a number is no number.
    """
    return _encoder.encode(message)


def to_engine(data: bytes) -> ToEngine:
    """Read what the server sent.

    Raises:
        msgspec.DecodeError, KokubanError: it is no such message, or a value in it is out of range.
    """
    return _to_engine.decode(data)


def from_engine(data: bytes) -> FromEngine:
    """Read what the engine sent.

    Raises:
        msgspec.DecodeError: it is no such message.
    """
    return _from_engine.decode(data)


def read_start(data: bytes) -> Start:
    """Read what a child is started with.

    Raises:
        msgspec.DecodeError: it is no such thing.
    """
    return _start.decode(data)


def read_answer(ask: Ask, value: msgspec.Raw) -> Any:
    """The value of a result.

    Raises:
        msgspec.DecodeError: it is no answer to that.
    """
    return msgspec.msgpack.decode(value, type=ANSWERS[type(ask)])
