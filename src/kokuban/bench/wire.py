"""Reads answers off a connection as their bytes come: HTTP/1.1 responses, and events in their body.

Two state machines without a socket. A general client library parses each chunk in several layers of
Python, and at some thousand events a second it would be measured instead of the server.
"""

from kokuban.core.errors import KokubanError

MAX_HEAD_BYTES = 64 * 1024
"""Of status line and headers: more is no answer of an API."""

_LINE_END = b"\r\n"


class WireError(KokubanError):
    """What came is no HTTP response."""


class ResponseReader:
    """One response. Interim ones (status 1xx) are passed over.

    Source: RFC 9112, sections 4, 6 and 7.1.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        """None until all headers are there."""

        self.headers: dict[str, str] = {}
        """Names in lower case; of several with one name the last."""

        self.done = False
        self._buffer = bytearray()
        self._left: int | None = None
        """Bytes still to come, of the body or of the chunk that is read; None: not known."""

        self._chunked = False
        self._in_trailer = False

    @property
    def started(self) -> bool:
        """Whether a byte has come."""
        return self.status is not None or bool(self._buffer)

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can take another request once this response is done."""
        known_end = self._chunked or "content-length" in self.headers
        return known_end and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """Take what has come; returns the part of the body that is in it.

        Raises:
            WireError: it is no HTTP response.
        """
        between_chunks = self._chunked and self._left is None and not self._in_trailer
        if between_chunks and not self._buffer and (chunk := _whole_chunk(data)) is not None:
            return chunk
        self._buffer += data
        while self.status is None:
            if not self._read_head():
                return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def end(self) -> bool:
        """The connection was closed; whether the response is whole."""
        if self.status is not None and not self._chunked and self._left is None:
            self.done = True
        return self.done

    def _read_head(self) -> bool:
        """Take one head out of the buffer, if all of it is there."""
        place = self._buffer.find(b"\r\n\r\n")
        if place < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise WireError(f"{len(self._buffer)} bytes came without an end of the headers")
            return False
        lines = bytes(self._buffer[:place]).decode("latin-1").split("\r\n")
        del self._buffer[: place + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest.partition(" ")[0]
        if not version.startswith("HTTP/1.") or not code.isdecimal() or len(code) != 3:
            raise WireError(f"{lines[0][:80]!r} is no status line of HTTP/1.1")
        if code[0] == "1":
            return True
        pairs = (line.partition(":") for line in lines[1:])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.status = int(code)
        self._chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        length = self.headers.get("content-length", "")
        if not self._chunked and length:
            if not length.isdecimal():
                raise WireError(f"content-length: {length[:40]!r} is no number")
            self._left = int(length)
        if self.status in (204, 304):
            self._left = 0
        return True

    def _read_plain(self) -> bytes:
        body = bytes(self._buffer if self._left is None else self._buffer[: self._left])
        del self._buffer[: len(body)]
        if self._left is not None:
            self._left -= len(body)
            self.done = self._left == 0
        return body

    def _read_chunks(self) -> bytes:
        parts: list[bytes] = []
        while not self.done:
            if self._left is None:
                if not self._read_chunk_head():
                    break
            elif len(self._buffer) < self._left + 2:
                # Of an unfinished chunk what is there is passed on at once.
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                parts.append(part)
                break
            else:
                parts.append(bytes(self._buffer[: self._left]))
                if self._buffer[self._left : self._left + 2] != _LINE_END:
                    raise WireError("a chunk does not end where its size says")
                del self._buffer[: self._left + 2]
                self._left = None
        return b"".join(parts)

    def _read_chunk_head(self) -> bool:
        """Take the line before a chunk, or one behind the last; False if it is not whole yet."""
        place = self._buffer.find(_LINE_END)
        if place < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise WireError(f"{len(self._buffer)} bytes came without the size of a chunk")
            return False
        line = bytes(self._buffer[:place])
        del self._buffer[: place + 2]
        if self._in_trailer:
            self.done = not line
            return True
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise WireError(f"{line[:40]!r} is no size of a chunk") from None
        if size:
            self._left = size
        else:
            self._in_trailer = True
        return True


def _whole_chunk(data: bytes) -> bytes | None:
    """The content of data that is one chunk and nothing else: what most reads of a stream bring.
    Saves the way through the buffer."""
    place = data.find(_LINE_END)
    try:
        size = int(data[:place], 16)
    except ValueError:
        return None
    end = place + 2 + size
    if size > 0 and len(data) == end + 2 and data.endswith(_LINE_END):
        return data[place + 2 : end]
    return None


class EventReader:
    """Server-sent events out of a body that comes in pieces.

    Source: WHATWG HTML, section 9.2.6. A lone carriage return as line end is not known here.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        """The data of every event that is complete now."""
        alone = body.startswith(b"data: ") and body.find(b"\n\n") == len(body) - 2
        if alone and body.count(b"\n") == 2 and not self._rest and not self._data:
            return [body[6:-2]]  # One event and nothing else, as most reads bring it.
        return self._feed_lines(body)

    def _feed_lines(self, body: bytes) -> list[bytes]:
        events: list[bytes] = []
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
