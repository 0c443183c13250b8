"""Tells whether two JSON schemas exclude each other, so that "one of them" is "any of them".

Only what is plain to see counts: types, constants, and a required property that excludes itself, as
a tagged union has one. References within the document are followed. A doubt is a no.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

MAX_PAIRS = 20_000
"""Pairs of schemas or constants that are compared for one document: a tenth of a second."""

_MAX_STEPS = 8
"""References that are followed one after the other."""

_KINDS: Mapping[type, str] = {
    bool: "boolean",
    str: "string",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Comparison:
    """Compares the schemas of one document. Whatever the document is, it takes no longer than
    `MAX_PAIRS` take.

    Args:
        root: the document.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._pairs_left = MAX_PAIRS

    def all_exclude(self, schemas: Sequence[Any]) -> bool:
        """Whether no value is valid under two of the schemas."""
        found = [_resolved(schema, self._root) for schema in schemas]
        constants = [_constants(each) if isinstance(each, Mapping) else None for each in found]
        if None not in constants and (keys := _keys(constants)) is not None:
            return len(set().union(*keys)) == sum(map(len, keys))
        return all(self._exclude(one, other) for one, other in combinations(found, 2))

    def _exclude(self, one: Any, other: Any) -> bool:
        """Whether they do, or two properties somewhere inside that all their values have."""
        waiting, seen = [(one, other)], set[tuple[int, int]]()
        while waiting and self._pairs_left > 0:
            self._pairs_left -= 1
            one, other = (_resolved(each, self._root) for each in waiting.pop())
            if (id(one), id(other)) in seen:
                continue
            seen.add((id(one), id(other)))
            if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
                continue
            if (plain := self._plainly(one, other)) is not None:
                if plain:
                    return True
                continue
            waiting += [
                (one["properties"][name], other["properties"][name])
                for name in _tags(one) & _tags(other)
            ]
        return False

    def _plainly(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
        """What types and constants tell; None: their properties may."""
        values = _constants(one), _constants(other)
        self._pairs_left -= len(values[0] or ()) * len(values[1] or ())
        if self._pairs_left < 0:
            return False
        kinds = _types(one), _types(other)
        if None not in kinds and not set(kinds[0] or ()) & set(kinds[1] or ()):
            return True
        if values[0] is not None and values[1] is not None:
            return not any(_same(a, b) for a in values[0] for b in values[1])
        return None if kinds == (("object",), ("object",)) else False


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


def _keys(constants: Sequence[Sequence[Any] | None]) -> list[set[tuple[bool, Any]]] | None:
    """By schema, one key for each of its constants; None where one of them holds others."""
    try:
        return [{(isinstance(v, bool), v) for v in values or ()} for values in constants]
    except TypeError:
        return None


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
