"""The cases of the fuzz driver: what each seed sends, and in which order.

A case is one request, or a few that follow each other: a response in the background that is asked
for, followed, cancelled and forgotten; a session that is paused and goes on.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.fuzz_values import Schema, Values, huge_body
from tests.parameter_values import JUNK, bad, good

from kokuban.server.parameter import Api, Parameter
from kokuban.server.parameters import TABLE

Headers = tuple[tuple[str, str], ...]

BASES: Mapping[str, str] = {
    "/v1/chat/completions": '"model":"m","messages":[{"role":"user","content":"p"}]',
    "/v1/completions": '"model":"m","prompt":"p"',
    "/v1/responses": '"model":"m","input":"p"',
    "/v1/responses/input_tokens": '"model":"m","input":"p"',
    "/v1/messages": '"model":"m","max_tokens":3,"messages":[{"role":"user","content":"p"}]',
    "/v1/messages/count_tokens": '"model":"m","messages":[{"role":"user","content":"p"}]',
    "/v1/embeddings": '"model":"m","input":"p"',
    "/tokenize": '"prompt":"p"',
    "/detokenize": '"tokens":[97]',
    "/v1/sessions/{session}/pause": '"expected_ms":10',
}
"""Fields that make a good body of each route that takes one."""

TABLED = ("/v1/chat/completions", "/v1/completions")
"""Routes whose fields stand in the table."""

LIMITS: Mapping[str, str] = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""How each route calls the length of an answer: most of them are kept short."""

PATHS = (
    "/", "/health", "/ready", "/metrics", "/stats", "/version", "/v1/models", "/v1/models/m",
    "/v1/models/nope", "/v1/explain/none", "/v1/sessions/s", "/v1/sessions/s/resume",
    "/reset_prefix_cache", "/props", "/slots", "/tokenizer_info", "/get_server_info",
    "/openapi.json", "/v1/responses/none", "/v1/chat/completions/", "//", "/v1/%00", "/v1/models/é",
    "/v1/sessions/" + "s" * 300, "/v1/sessions/\ud83d", "/static/page.js", "/static/../guard.py",
    "/v1/responses/none/cancel", "/v1/responses/none/input_items", "/" + "a/" * 4000, "*", "",
)  # fmt: skip
QUERIES = (
    "", "stream=true", "stream=2", "starting_after=-2", "starting_after=99999999999999999999",
    "stream=true&starting_after=1", "limit=0", "limit=1&order=asc", "order=x", "after=nope",
    "limit=%F0%28", "since=x", "since=a:-1", "since=0:9999999999999999999999", "a=" + "b" * 5000,
    "&&&=", "stream", "limit=1&limit=2", "beta=true",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
HEADERS = (
    ("content-type", ("text/plain", "application/json; charset=latin-1", "", "a/b+json")),
    ("host", ("evil.example", "", "localhost:1", "[::1]", "127.0.0.1:99999", "\x00", "[", "a:b:c")),
    ("x-request-id", ("a" * 200, "x\ny", "é", "r", "")),
    ("x-session-id", ("s", "s2", "", "x" * 300, "é", "\x00")),
    ("authorization", ("Bearer x", "Basic", "", "Bearer", "Bearer é", "bearer  x y")),
    ("x-api-key", ("", "x", "é")),
    ("accept", ("text/event-stream", "x" * 40_000)),
    ("content-length", ("-1", "x", "99999999999", "0", "9" * 5000, "²")),
    ("transfer-encoding", ("chunked", "gzip")),
    ("origin", ("https://evil.example", "null", "http://[", "http://localhost:1")),
    ("expect", ("100-continue",)),
    ("last-event-id", ("x", "a:-1", "a:" + "9" * 400, "é")),
    ("traceparent", ("00-" + "0" * 32 + "-" + "0" * 16 + "-00", "x", "é")),
    ("anthropic-version", ("2023-06-01", "x")),
    ("anthropic-beta", ("a,b,,", "é")),
    ("é", ("x",)),
)  # fmt: skip

KEYS = ("infer-key", "admin-key", "metrics")
"""Of the application that wants one; the last is none."""

KINDS: Mapping[str, int] = {
    "fields": 34, "schema": 22, "bytes": 10, "headers": 6, "paths": 5, "leaves": 6, "responses": 6,
    "sessions": 2, "events": 1, "huge": 1, "wire": 4, "keys": 3,
}  # fmt: skip
"""Shares of the cases."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `{id}` in path and body is the id of the case's first answer."""

    method: str
    path: str
    body: bytes = b""
    headers: Headers = ()
    query: str = ""
    leaves_after: int | None = None
    """Messages of the answer after which the client is gone."""

    pieces: int = 1
    """In which the body arrives."""

    ends_early: bool = False
    """The client leaves before the last piece."""

    reads_slowly: bool = False
    """Takes the answer's messages one after another, with a pause between them."""

    polls: bool = False
    """Repeated until the response is at its end."""


@dataclass(frozen=True, slots=True)
class Case:
    """What one seed stands for."""

    kind: str
    asks: tuple[Ask, ...]
    app: str = "open"
    """"open"; "keyed": with keys, limits and --strict; "wire": over a socket."""

    at_once: bool = False
    """All requests after the first run together."""

    raw: bytes = b""
    """For a socket: what is written."""


def make_case(seed: int, document: Mapping[str, Any]) -> Case:
    """The case of a seed, always the same.

    Args:
        document: our OpenAPI document.
    """
    maker = _Maker(random.Random(seed), document)
    kind = maker.rng.choices(list(KINDS), list(KINDS.values()))[0]
    return maker.case(kind)


class _Maker:
    def __init__(self, rng: random.Random, document: Mapping[str, Any]) -> None:
        self.rng = rng
        self._document = document
        self._schemas: Mapping[str, Schema] = document["components"]["schemas"]

    def case(self, kind: str) -> Case:
        rng = self.rng
        if kind == "responses":
            return Case(kind, tuple(self._responses()), at_once=rng.random() < 0.5)
        if kind == "sessions":
            return Case(kind, tuple(self._sessions()), at_once=rng.random() < 0.3)
        if kind == "wire":
            ask = self._plain(self._path(TABLED))
            return Case(kind, (ask,), "wire", raw=wire_bytes(rng, ask))
        if kind == "keys":
            return self._keys()
        return Case(kind, (self._single(kind),), "keyed" if kind == "events" else "open")

    def _single(self, kind: str) -> Ask:
        rng, path = self.rng, self._path()
        if kind == "bytes":
            return Ask("POST", path, _mutated(rng, self._body(path)))
        if kind == "headers":
            chosen = rng.sample(HEADERS, rng.randint(1, 3))
            headers = tuple((name, rng.choice(values)) for name, values in chosen)
            return Ask("POST", path, self._body(path), headers, rng.choice(QUERIES))
        if kind == "paths":
            where = rng.choice((*PATHS, path))
            query = rng.choice(QUERIES)
            return Ask(rng.choice(METHODS), where, self._body(path), query=query)
        if kind == "leaves":
            pieces = rng.choice((1, 1, 2, 5))
            ends_early = pieces > 1 and rng.random() < 0.5
            return Ask(
                "POST", path, self._longer(path), leaves_after=rng.choice((0, 1, 2, 3, 5, 9, 30)),
                pieces=pieces, ends_early=ends_early,
            )  # fmt: skip
        if kind == "events":
            query = rng.choice(("", *QUERIES))
            admin = (("authorization", f"Bearer {KEYS[1]}"),)
            leaves = rng.randint(0, 3)
            return Ask("GET", "/v1/kv_events", headers=admin, query=query, leaves_after=leaves)
        if kind == "huge":
            return Ask("POST", path, huge_body(rng), pieces=rng.choice((1, 3)))
        return self._plain(path) if kind == "fields" else Ask("POST", path, self._drawn(path))

    def _path(self, preferred: tuple[str, ...] = TABLED) -> str:
        weights = [4 if path in preferred else 1 for path in BASES]
        path = self.rng.choices(list(BASES), weights)[0]
        return path.replace("{session}", self.rng.choice(("s", "s2", "é", "a/b")))

    def _plain(self, path: str) -> Ask:
        return Ask("POST", path, self._body(path), pieces=self.rng.choice((1, 1, 1, 3)))

    def _body(self, path: str) -> bytes:
        if path not in TABLED:
            return self._drawn(path)
        return _tabled_body(self.rng, path)

    def _drawn(self, path: str, *fixed: str, odd: float | None = None) -> bytes:
        """A body from the document's schema of the route."""
        rng = self.rng
        route = _route(path)
        if odd is None:
            odd = rng.choice((0.0, 0.0, 0.02, 0.1))
        content = self._document["paths"][route]["post"]["requestBody"]["content"]
        text = Values(rng, self._schemas, odd).text(content["application/json"]["schema"])
        if not text.startswith("{") or rng.random() < 0.02:
            return text.encode()
        fields = [text[1:-1], *fixed] if text != "{}" else list(fixed)
        if rng.random() < 0.6:
            fields.append(BASES[route])
        if (name := LIMITS.get(route)) and rng.random() < 0.98:
            fields.append(f'"{name}":{_length(rng)}')
        if '"n":128' in text:
            fields.append('"n":2')
        return ("{" + ",".join(field for field in fields if field) + "}").encode()

    def _longer(self, path: str) -> bytes:
        body = self._body(path)
        name = LIMITS.get(path)
        if name is None or not body.endswith(b"}"):
            return body
        stream = self.rng.choice(("true", "true", "false"))
        more = f',"stream":{stream},"{name}":{self.rng.randint(5, 40)}}}'
        return body[:-1] + more.encode()

    def _responses(self) -> list[Ask]:
        """A response, and what may be done with it."""
        rng = self.rng
        root, where = "/v1/responses", "/v1/responses/{id}"
        background = rng.random() < 0.7
        fixed = [
            f'"model":"m","input":"p","stream":{rng.choice(("true", "false"))}',
            f'"background":{str(background).lower()},"store":true',
        ]
        leaves = rng.choice((None, None, 1, 3))
        first = Ask("POST", root, self._drawn(root, *fixed, odd=0.0), leaves_after=leaves)
        first = replace(first, body=first.body[:-1] + b"," + ",".join(fixed).encode() + b"}")
        further = b'{"model":"m","previous_response_id":"{id}","input":"q","max_output_tokens":2}'
        choices = [
            Ask("GET", where),
            Ask("GET", where, query=rng.choice(QUERIES)),
            Ask("GET", where, query="stream=true"),
            Ask("GET", where, query="stream=true&starting_after=1", leaves_after=2),
            Ask("GET", f"{where}/input_items", query=rng.choice(QUERIES)),
            Ask("POST", f"{where}/cancel"),
            Ask("POST", f"{where}/cancel", leaves_after=0),
            Ask("POST", root, further),
            Ask("DELETE", where),
        ]
        return [first, *rng.choices(choices, k=rng.randint(1, 4)), Ask("GET", where, polls=True)]

    def _sessions(self) -> list[Ask]:
        rng = self.rng
        name = rng.choice(("t1", "t2", "t3", "x y", "é"))
        where = f"/v1/sessions/{name}"
        header = (("x-session-id", name),)
        path = self._path()
        choices = [
            Ask("POST", f"{where}/pause", b'{"expected_ms":' + rng.choice((b"1", b"1e9")) + b"}"),
            Ask("POST", f"{where}/pause", b'{"tools":["a","b"]}'),
            Ask("POST", f"{where}/resume", b"{}"),
            Ask("GET", where),
            Ask("DELETE", where),
            Ask("POST", path, self._body(path), header, leaves_after=rng.choice((None, 1))),
        ]
        return [Ask("POST", path, self._body(path), header), *rng.choices(choices, k=3)]

    def _keys(self) -> Case:
        """Against a server that wants a key, has limits, and refuses what it does not know."""
        rng = self.rng
        ask = self._single(rng.choice(("fields", "schema", "paths", "headers", "leaves")))
        key = rng.choice(KEYS)
        name, value = rng.choice((("authorization", f"Bearer {key}"), ("x-api-key", key)))
        if rng.random() < 0.2:
            ask = Ask("POST", "/reset_prefix_cache")
        return Case("keys", (replace(ask, headers=(*ask.headers, (name, value))),), "keyed")


def _route(path: str) -> str:
    return "/v1/sessions/{session}/pause" if path.startswith("/v1/sessions/") else path


def _length(rng: random.Random) -> int:
    return rng.choices((1, 2, 3, 25), (40, 30, 25, 5))[0]


def _tabled_body(rng: random.Random, path: str) -> bytes:
    """A body of fields from the table: most of them good, up to two not."""
    fields = [BASES[path]]
    table = _table(path)
    chosen = rng.sample(table, min(len(table), rng.choice((0, 1, 1, 2, 3, 5))))
    num_odd = rng.choices((0, 1, 2), (60, 30, 10))[0]
    for index, parameter in enumerate(chosen):
        if index < num_odd:
            values = rng.choice((bad(parameter), JUNK)) if parameter.kind != "any" else JUNK
        else:
            values = ["null"] if parameter.kind == "any" else good(parameter)
        fields.append(f'"{parameter.name}":{rng.choice(values or JUNK)}')
    if rng.random() < 0.99:
        fields.append(f'"{LIMITS[path]}":{_length(rng)}')  # The last one counts.
    if '"n":128' in fields and rng.random() < 0.95:
        fields.append(f'"n":{rng.randint(1, 3)}')
    if rng.random() < 0.1:
        fields.append(f'"{rng.choice(("foo", "a.b", "é", "temprature"))}":{rng.choice(JUNK)}')
    return ("{" + ",".join(fields) + "}").encode()


def _table(path: str) -> list[Parameter]:
    apis = Api.COMPLETIONS if path == "/v1/completions" else Api.CHAT
    return [parameter for parameter in TABLE if apis in parameter.apis]


def _mutated(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(5)
        if how == 0:
            data[at:] = b""
        elif how == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        elif how == 2:
            data[at : at + 1] = rng.randbytes(1)
        elif how == 3:
            data[at:at] = rng.choice(
                (b"[" * 500, b'{"a":' * 300, b"\xef\xbb\xbf", b"\x00", b"\\ud83d")
            )
        else:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:50]
    return bytes(data)


def wire_bytes(rng: random.Random, ask: Ask) -> bytes:
    """A request as it goes over a socket, with a few bytes or lines of its head changed."""
    lines = [
        f"POST {ask.path} HTTP/1.1".encode(),
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(ask.body),
        b"Connection: close",
    ]
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(lines))
        lines[at] = _mutated(rng, lines[at])
    if rng.random() < 0.3:
        lines[rng.randrange(len(lines))] = rng.choice(_LINES)
    body = ask.body
    if rng.random() < 0.2:
        lines[3] = b"Transfer-Encoding: chunked"
        body = rng.choice((b"%x\r\n%s\r\n0\r\n\r\n", b"%x;e\r\n%s", b"-%x\r\n%s")) % (
            len(body),
            body,
        )
    end = b"\n" if rng.random() < 0.05 else b"\r\n"
    raw = end.join(lines) + end * 2 + body
    cut = rng.randrange(len(raw)) if rng.random() < 0.1 else len(raw)
    return raw[:cut] + (raw if rng.random() < 0.05 else b"")


_LINES = (
    b"GET / HTTP/1.0", b"PRI * HTTP/2.0", b"GET /", b"POST http://[ HTTP/1.1", b"GET \x00 HTTP/1.1",
    b"Content-Length: 1", b"Content-Length: 99999999999999999999", b"Content-Length: -1",
    b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue", b"Upgrade: websocket",
    b"X: " + b"y" * 40_000, b" folded", b"X:" * 9000, b"Host: evil.example", b"Host: \xff", b"",
    b"CONNECT localhost:1 HTTP/1.1", b"TRACE / HTTP/1.1", b"Cookie: " + b"\xff" * 99,
)  # fmt: skip
