"""Requests to the Responses API in process."""

import json
from typing import Any

import httpx
from tests.server.fakes import Served

Json = dict[str, Any]


def parse_named_events(data: bytes) -> list[Json]:
    """The JSON of every event; checks the framing, the names and the numbers."""
    *pieces, rest = data.split(b"\n\n")
    assert rest == b""
    events = []
    for piece in pieces:
        if piece.startswith(b": "):
            continue
        name, content = piece.decode().splitlines()
        event: Json = json.loads(content.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    first = events[0]["sequence_number"]
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(first, first + len(events)))
    return events


async def ask(http: httpx.AsyncClient, **fields: Any) -> Json:
    """One whole response."""
    response = await http.post("/v1/responses", json={"input": "p", **fields})
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def stream(http: httpx.AsyncClient, **fields: Any) -> list[Json]:
    """The events of one response."""
    response = await http.post("/v1/responses", json={"input": "p", "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parse_named_events(response.content)


async def refused(http: httpx.AsyncClient, status: int = 400, **fields: Any) -> Json:
    """The error of a request that is refused."""
    response = await http.post("/v1/responses", json={"input": "p", **fields})
    assert response.status_code == status, response.text
    error: Json = response.json()["error"]
    return error


def prompt_of(model: Served, number: int = -1) -> str:
    """The text of a prompt that the engine was given."""
    ids = model.client.submitted[number].prompt_token_ids
    return model.tokenizer.decode(ids, skip_special=False)
