"""Tells whether two JSON schemas exclude each other, so that "one of them" is "any of them".

Only what is plain to see counts: types, constants, and a required property that excludes itself, as
a tagged union has one. References within the document are followed. A doubt is a no.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

_MAX_STEPS = 8
"""References that are followed one after the other, and properties inside each other."""

_KINDS: Mapping[type, str] = {
    bool: "boolean",
    str: "string",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def all_exclude(schemas: Sequence[Any], root: object) -> bool:
    """Whether no value is valid under two of the schemas."""
    return all(_exclude(one, other, root) for one, other in combinations(schemas, 2))


def _exclude(one: Any, other: Any, root: object, steps: int = 0) -> bool:
    one, other = _resolved(one, root), _resolved(other, root)
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)) or steps > _MAX_STEPS:
        return False
    kinds = _types(one), _types(other)
    if None not in kinds and not set(kinds[0] or ()) & set(kinds[1] or ()):
        return True
    values = _constants(one), _constants(other)
    if values[0] is not None and values[1] is not None:
        return not any(_same(a, b) for a in values[0] for b in values[1])
    if kinds != (("object",), ("object",)):
        return False
    return any(
        _exclude(one["properties"][name], other["properties"][name], root, steps + 1)
        for name in _tags(one) & _tags(other)
    )


def _tags(schema: Mapping[str, Any]) -> set[str]:
    """Properties that every value has and that the schema says something about."""
    required, properties = schema.get("required"), schema.get("properties")
    if not (isinstance(required, list) and isinstance(properties, Mapping)):
        return set()
    return {name for name in required if isinstance(name, str)} & set(properties)


def _types(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The types that values can have; None: any."""
    constants = _constants(schema)
    if constants is not None:
        return tuple({_KINDS[type(value)] for value in constants})
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if not isinstance(kinds, list):
        return None
    return tuple("number" if kind == "integer" else str(kind) for kind in kinds)


def _constants(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _same(one: Any, other: Any) -> bool:
    """As JSON has it: true is not 1. What holds others is not looked into."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _resolved(schema: Any, root: object) -> Any:
    """What a bare reference points to; the schema itself where it is none."""
    for _ in range(_MAX_STEPS):
        if not (isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str)):
            return schema
        if len(schema) > 1:
            return None  # More schemas than one lie over the value.
        schema = _pointed(schema["$ref"], root)
    return None


def _pointed(reference: str, root: object) -> Any:
    if not reference.startswith("#/") or "%" in reference:
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
