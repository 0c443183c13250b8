"""OpenAI's own description of the API, as a judge of what we send.

The document says `nullable` in some places, which JSON Schema does not know: it becomes a union of
types first.
"""

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from tests.shared_data import shared_data


@cache
def _document() -> Any:
    return with_null(json.loads(shared_data("openai/openapi.json").read_text()))


def with_null(schema: Any) -> Any:
    """The same in JSON Schema's own words."""
    if isinstance(schema, list):
        return [with_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: with_null(value) for key, value in schema.items() if key != "discriminator"}
    if changed.pop("nullable", False) is True:
        return {"anyOf": [changed, {"type": "null"}]}
    return changed


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": _document()["components"]}
    return Draft202012Validator(schema)


def assert_valid(name: str, value: Any) -> None:
    """Fails with the place of the first thing that a named schema does not allow."""
    problems = sorted(_validator(name).iter_errors(value), key=lambda error: len(error.path))
    assert not problems, f"{name}: {problems[0].json_path}: {problems[0].message[:300]}"


def assert_valid_events(events: list[dict[str, Any]]) -> None:
    """Each event against the schema of its type, and against the union of all of them."""
    for event in events:
        assert_valid(_schema_of(event["type"]), event)


@cache
def _schema_of(kind: str) -> str:
    """The name of the schema whose `type` is this."""
    schemas = _document()["components"]["schemas"]
    for reference in schemas["ResponseStreamEvent"]["anyOf"]:
        name = str(reference["$ref"]).rpartition("/")[2]
        if schemas[name]["properties"]["type"]["enum"] == [kind]:
            return name
    raise AssertionError(f"no event of OpenAI's is called {kind}")
