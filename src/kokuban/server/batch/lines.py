"""What a line of the input asks, and what a line of the output says."""

import secrets
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from kokuban.server.raw_json import UNREADABLE

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
)
"""What a batch may ask, where this server has it."""


class BatchRequest(Struct, frozen=True):
    """A line of the input that can be run."""

    custom_id: str
    method: str
    url: str
    body: Raw


class BatchResponse(Struct, frozen=True):
    """What the server answered, whatever its status."""

    status_code: int
    request_id: str
    body: Raw


class BatchError(Struct, frozen=True, kw_only=True):
    """Why a line was never sent to the server."""

    code: str
    message: str
    line: int
    """Of the input, from 1."""


class BatchResult(Struct, frozen=True, kw_only=True):
    """A line of the output: a response or an error."""

    id: str
    custom_id: str | None
    """None: the line has none that could be read."""

    response: BatchResponse | None = None
    error: BatchError | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class BadLine(Exception):
    """A line that cannot be sent. Holds the result that says so."""

    def __init__(self, number: int, custom_id: str | None, code: str, message: str) -> None:
        super().__init__(message)
        error = BatchError(code=code, message=f"line {number}: {message}", line=number)
        self.result = BatchResult(id=new_id(), custom_id=custom_id, error=error)


class _Named(Struct):
    custom_id: str


class _Mode(Struct):
    stream: bool | None = None
    background: bool | None = None


def new_id() -> str:
    """An id for a result."""
    return f"batch_req_{secrets.token_hex(12)}"


def digest_of(custom_id: str) -> bytes:
    """Stands for an id where many are remembered."""
    return blake2b(custom_id.encode(), digest_size=16).digest()


def custom_id_of(raw: bytes) -> str | None:
    """The name of a line; None when it has none that can be read."""
    try:
        return msgspec.json.decode(raw, type=_Named).custom_id or None
    except UNREADABLE:
        return None


def parse_line(number: int, raw: bytes | None) -> BatchRequest:
    """Read a line.

    Args:
        number: of the line, from 1.
        raw: its bytes; None: it was too long to be read.

    Raises:
        BadLine: it cannot be sent.
    """
    if raw is None:
        raise BadLine(number, None, "line_too_large", "is longer than --max-body-size")
    try:
        request = msgspec.json.decode(raw, type=BatchRequest)
        problem = _problem(request)
    except UNREADABLE as error:
        what = str(error).replace("Object missing required field", "there is no field")
        if isinstance(error, RecursionError):
            what = "is nested too deeply"
        raise BadLine(number, custom_id_of(raw), "invalid_line", what) from None
    if problem:
        raise BadLine(number, request.custom_id or None, *problem)
    return request


def _problem(request: BatchRequest) -> tuple[str, str] | None:
    """Code and message of what is wrong with a line that could be read."""
    if not request.custom_id:
        return "invalid_line", "custom_id is empty"
    if request.method != "POST":
        return "invalid_method", f"method is {request.method[:16]!r}; a batch has only POST"
    if request.url not in PATHS:
        return "invalid_url", f"url is {request.url[:128]!r}; a batch may ask {', '.join(PATHS)}"
    mode = msgspec.json.decode(request.body, type=_Mode)
    if mode.stream:
        return "invalid_request", "stream is true; the answers of a batch come whole"
    if mode.background:
        return "invalid_request", "background is true; a batch waits for its answers"
    return None
