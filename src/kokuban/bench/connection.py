"""HTTP/1.1 connections to one server, kept open between requests, with the time of every read."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from kokuban.bench.wire import ResponseReader, WireError
from kokuban.core.errors import ConfigError, KokubanError

_LIST_S = 30.0
"""Seconds for a list of models."""

OnBody = Callable[[bytes, float], None]
"""Called with a piece of the body and the time at which it was read."""


class Disconnected(KokubanError):
    """The server closed the connection before its answer was whole."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is."""

    host: str
    port: int
    tls: bool
    path: str
    """In front of `/chat/completions`; ends with `/v1` unless the operator chose another."""

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """The address of `http://host:port`, with or without a path.

    Raises:
        ConfigError: it is none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--base-url {url} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--base-url {url} is no address such as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/")
    address = Address(parts.hostname, port or (443 if tls else 80), tls, path or "/v1")
    _check_ascii(url, address)
    return address


def _check_ascii(url: str, address: Address) -> None:
    """Raises `ConfigError` for what the head of a request cannot hold."""
    text = address.authority + address.path
    if _misfit(text) is not None or " " in text:
        raise ConfigError(
            f"--base-url {url!a} is not all ASCII without spaces; write the path with %-escapes "
            f"and the host as xn--"
        )
    try:
        address.host.encode("idna")  # As the resolver does.
    except UnicodeError as error:
        raise ConfigError(f"--base-url {url} has no valid host: {error}") from error


def check_api_key(key: str) -> None:
    """Raises `ConfigError` for a key that no header can hold. The key itself is not told."""
    index = _misfit(key)
    if index is not None:
        raise ConfigError(
            f"--api-key has U+{ord(key[index]):04X} as character {index + 1} of {len(key)}, and a "
            f"header holds printable ASCII only; give the key without it"
        )


def _misfit(text: str) -> int | None:
    """Where the first character is that is not printable ASCII."""
    return next((index for index, char in enumerate(text) if not " " <= char <= "~"), None)


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._on_body: OnBody | None = None
        self._done: asyncio.Future[ResponseReader] | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        reader, done = self._reader, self._done
        if reader is None or done is None or done.done():
            self.close()  # Nobody asked for this.
            return
        try:
            body = reader.feed(data)
        except WireError as error:
            done.set_exception(error)
            return
        if body and self._on_body is not None:
            self._on_body(body, now_s)
        if reader.done:
            done.set_result(reader)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        done, reader = self._done, self._reader
        if done is None or done.done() or reader is None:
            return
        if exc is None and reader.end():
            done.set_result(reader)
        else:
            done.set_exception(Disconnected(str(exc) if exc else "the connection was closed"))

    async def send(self, request: bytes, on_body: OnBody) -> ResponseReader:
        """Send a request and wait until its answer is whole.

        Raises:
            Disconnected, WireError: there is none.
        """
        assert self._transport is not None, "not connected yet"
        self._reader, self._on_body = ResponseReader(), on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._done = None

    @property
    def answered(self) -> bool:
        """Whether a byte of the answer to the last request has come."""
        return self._reader is not None and self._reader.started

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()


class Connections:
    """Connections to one address. A request takes an idle one, or opens a new one.

    Args:
        headers: of every request, beside those that HTTP needs.
    """

    def __init__(self, address: Address, headers: Mapping[str, str]) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.tls else None
        fields = {"host": address.authority, "content-type": "application/json",
                  "accept": "text/event-stream", **headers}  # fmt: skip
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[Connection] = []
        self.num_opened = 0

    async def request(self, method: str, path: str, body: bytes, on_body: OnBody) -> ResponseReader:
        """Send a request below the address's path, and wait until its answer is whole.

        Raises:
            OSError: no connection.
            Disconnected, WireError: no whole answer.
        """
        head = (
            f"{method} {self._address.path}{path} HTTP/1.1\r\n{self._fields}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        request = head.encode("latin-1") + body
        while self._idle:
            connection = self._idle.pop()
            if connection.closed:
                continue
            try:
                return await self._exchange(connection, request, on_body)
            except Disconnected:
                # A server may close what was idle, just now: that is no answer to this request.
                if connection.answered:
                    raise
        return await self._exchange(await self._open(), request, on_body)

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        where = self._address
        _, connection = await loop.create_connection(
            Connection, where.host, where.port, ssl=self._tls
        )
        self.num_opened += 1
        return connection

    async def _exchange(
        self, connection: Connection, request: bytes, on_body: OnBody
    ) -> ResponseReader:
        whole = False
        try:
            response = await connection.send(request, on_body)
            whole = response.keeps_alive
        finally:
            # Left in the middle (an error, a timeout), a connection has no further use.
            if whole and not connection.closed:
                self._idle.append(connection)
            else:
                connection.close()
        return response


async def first_model(base_url: str, api_key: str) -> str:
    """The first model that a server lists.

    Raises:
        ConfigError: it lists none, or does not answer; or the key cannot be sent.
    """
    check_api_key(api_key)
    connections = Connections(
        parse_address(base_url), {"authorization": f"Bearer {api_key}"} if api_key else {}
    )
    body = bytearray()
    way_out = "say which with --model"
    try:
        async with asyncio.timeout(_LIST_S):
            answer = await connections.request(
                "GET", "/models", b"", lambda data, _: body.extend(data)
            )
        if answer.status != 200:
            raise ConfigError(f"{base_url} does not list its models ({answer.status}); {way_out}")
        return str(json.loads(bytes(body))["data"][0]["id"])
    except (KokubanError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{base_url} does not answer: {error or 'too slow'}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{base_url} lists no model; {way_out}") from error
    finally:
        connections.close()
