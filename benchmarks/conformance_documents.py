"""The documents that answers are held against, and the events of their streams."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
from benchmarks.conformance_openai import DEVIATIONS
from tests.server.responses.schemas import with_null

OPENAI_OPERATIONS = (
    "createChatCompletion",
    "createCompletion",
    "createEmbedding",
    "listModels",
    "retrieveModel",
    "createResponse",
    "getResponse",
    "deleteResponse",
    "cancelResponse",
    "listInputItems",
)
_ENVELOPE = {
    "description": "Anything that is no success.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}},
}
STREAM = "text/event-stream"
KEY = "a-key-of-the-operator"
KEY_HEADER = {"authorization": f"Bearer {KEY}"}


@dataclass(frozen=True)
class Document:
    """A description of an API, ready for Schemathesis."""

    name: str
    raw: dict[str, Any]
    base: str
    """What its paths are below."""

    has_negative: bool
    """Whether it is strict enough that what it does not allow must be refused."""

    _validators: dict[str, Any] = field(default_factory=dict)

    def operations(self) -> dict[str, dict[str, Any]]:
        """By `operationId`."""
        return {
            operation["operationId"]: operation
            for methods in self.raw["paths"].values()
            for operation in methods.values()
        }

    def events_of(self, operation: str) -> dict[str, Any] | None:
        """The schema of the data of an operation's events; None: it has no streams."""
        answers = self.operations()[operation]["responses"]["200"].get("content", {})
        return answers[STREAM]["schema"] if STREAM in answers else None

    def problem(self, operation: str, data: Any) -> str | None:
        """What an event of an operation has that no schema allows; None: nothing."""
        return self._first(f"events of {operation}", self.events_of(operation) or {}, data)

    def wrong(self, operation: str, body: Any) -> str | None:
        """What a body has that an operation does not take; None: nothing."""
        content = self.operations()[operation]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        return self._first(f"body of {operation}", schema, body)

    def _first(self, name: str, schema: dict[str, Any], value: Any) -> str | None:
        if (validator := self._validators.get(name)) is None:
            whole = {**schema, "components": self.raw["components"]}
            validator = self._validators[name] = jsonschema_rs.Draft202012Validator(whole)
        found = next(validator.iter_errors(value), None)
        if found is None:
            return None
        return f"{found.instance_path}: {found.message[-300:]} by {found.schema_path}"


MANY = 6
"""Alternatives of one rule that Schemathesis can hold together with others."""


def narrowed(schema: Any) -> Any:
    """A copy that asks for less variety where that costs most and shows least.

    Fields that nobody knows have short values instead of any JSON. A rule of many alternatives (one
    form of an answer at most) is left out: `conformance_aim` keeps it.
    """
    if isinstance(schema, list):
        return [narrowed(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: narrowed(inner) for name, inner in schema.items()}
    if made.get("additionalProperties") is True:
        made["additionalProperties"] = _SHORT
    if isinstance(rules := made.get("allOf"), list):
        made["allOf"] = [rule for rule in rules if len(rule.get("anyOf", ())) <= MANY]
        if not made["allOf"]:
            del made["allOf"]
    return made


_SHORT: dict[str, Any] = {
    "anyOf": [{"type": ["boolean", "integer", "null"]}, {"type": "string", "maxLength": 8}]
}


def own_document(url: str) -> Document:
    """Ours, without the feeds that never end."""
    raw = httpx.get(f"{url}/openapi.json", headers=KEY_HEADER, timeout=60).json()
    for path, methods in list(raw["paths"].items()):
        raw["paths"][path] = {
            method: operation
            for method, operation in methods.items()
            if list(operation["responses"]["200"]["content"]) != [STREAM]
        }
    return Document("kokuban", raw, url, has_negative=True)


def openai_document(path: Path, url: str) -> Document:
    """OpenAI's: the operations that are served, with the errors that it tells of in words only."""
    raw = with_null(json.loads(path.read_text()))
    for deviation in DEVIATIONS:
        deviation.mend(raw)
    paths: dict[str, Any] = {}
    for place, methods in raw["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] in OPENAI_OPERATIONS:
                paths.setdefault(place, {})[method] = _completed(operation)
    raw = {key: raw[key] for key in ("openapi", "info", "components")} | {"paths": paths}
    raw["components"].pop("securitySchemes", None)
    return Document("OpenAI", raw, f"{url}/v1", has_negative=False)


def _completed(operation: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": operation["responses"]["200"], "default": _ENVELOPE}
    return {**operation, "responses": responses, "security": []}


_ENDS = frozenset(
    ("message_stop", "error", "response.completed", "response.incomplete", "response.failed")
)


def is_whole(events: Sequence[bytes]) -> bool:
    """Whether the last event is one that ends a stream; nothing at all is whole too."""
    if not events or events[-1] == b"[DONE]":
        return True
    return json.loads(events[-1]).get("type") in _ENDS


def event_data(body: bytes) -> Sequence[bytes]:
    """The data of each event of a stream, in order. Comments are left out.

    Raises:
        ValueError: something is no event.
    """
    found: list[bytes] = []
    for event in body.split(b"\n\n"):
        lines = [line for line in event.split(b"\n") if line and not line.startswith(b":")]
        data = [line[6:] for line in lines if line.startswith(b"data: ")]
        if lines and len(data) != 1:
            raise ValueError(f"an event without one line of data: {event[:200]!r}")
        found += data
    if body and not body.endswith(b"\n\n"):  # Nothing may follow the place that was asked for.
        raise ValueError(f"the stream ends within an event: {body[-200:]!r}")
    return found
