"""The JSON-Schema-Test-Suite as a judge: instances as texts in the order of their schema."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from kokuban.sampling.json_numbers import MAX_DIGITS

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Instance:
    """One value and whether it is valid."""

    name: str
    texts: tuple[str, ...]
    """The value in the order of the schema, with and without escapes."""

    valid: bool
    only_noted: bool
    """Valid because a format is an annotation there; here formats are asserted."""

    too_long: bool
    """It has more digits in a row than a number may have here."""


@dataclass(frozen=True, slots=True)
class Group:
    """One schema and its instances."""

    name: str
    schema: Any
    instances: tuple[Instance, ...]


def groups(root: Path) -> Iterator[Group]:
    """All groups of draft 2020-12 below `tests/draft2020-12`."""
    folder = root / "tests" / "draft2020-12"
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            name = f"{path.relative_to(folder)}: {group['description']}"
            yield Group(name, schema, tuple(_instance(schema, each) for each in group["tests"]))


def _instance(schema: Any, test: Mapping[str, Any]) -> Instance:
    value = in_order(schema, _plain(test["data"]), schema)
    plain = json.dumps(value, ensure_ascii=False)
    return Instance(
        name=test["description"],
        texts=(plain, json.dumps(value)),
        valid=test["valid"],
        only_noted="only an annotation" in test["description"],
        too_long=re.search(rf"\d{{{MAX_DIGITS + 1}}}", plain) is not None,
    )


def in_order(schema: Any, value: Any, root: Any, depth: int = 0) -> Any:
    """The same value with properties in the order in which a grammar of the schema has them."""
    if depth > _DEEPEST:
        return value
    for constant in _constants(schema):
        if json.dumps(constant, sort_keys=True) == json.dumps(value, sort_keys=True):
            return constant
    schemas = list(_in_place(schema, root))
    if isinstance(value, dict):
        return {
            name: in_order({"allOf": list(_of_name(schemas, name))}, value[name], root, depth + 1)
            for name in _names(schemas, value)
        }
    if isinstance(value, list):
        return [
            in_order({"allOf": list(_of_index(schemas, index))}, each, root, depth + 1)
            for index, each in enumerate(value)
        ]
    return value


def _names(schemas: list[Any], value: Mapping[str, Any]) -> list[str]:
    named = [name for schema in schemas for name in schema.get("properties", {})]
    for schema in schemas:
        required = schema.get("required", [])
        named += required if isinstance(required, list) else []
    return list(dict.fromkeys([*(name for name in named if name in value), *value]))


def _of_name(schemas: list[Any], name: str) -> Iterator[Any]:
    for schema in schemas:
        found = False
        if name in schema.get("properties", {}):
            yield schema["properties"][name]
            found = True
        for pattern, inner in schema.get("patternProperties", {}).items():
            if _matches(pattern, name):
                yield inner
                found = True
        if not found and "additionalProperties" in schema:
            yield schema["additionalProperties"]


def _of_index(schemas: list[Any], index: int) -> Iterator[Any]:
    for schema in schemas:
        tuple_ = schema.get("prefixItems", [])
        if index < len(tuple_):
            yield tuple_[index]
        elif "items" in schema:
            yield schema["items"]


def _constants(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    given = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return [_plain(each) for each in given]


def _in_place(schema: Any, root: Any, depth: int = 0) -> Iterator[Any]:
    """The schema and those that look at the same value."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return
    yield schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        inner = schema.get(keyword)
        for each in inner if isinstance(inner, list) else []:
            yield from _in_place(each, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        yield from _in_place(_pointed(root, reference), root, depth + 1)


def _pointed(root: Any, reference: str) -> Any:
    found = root
    for part in reference[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return found


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _plain(value: Any) -> Any:
    """Whole numbers written as such."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
