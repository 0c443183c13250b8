"""Makes JSON schemas ready for llguidance, and refuses what would not be followed to the letter.

A keyword that only describes stays; one that has no effect where it stands is taken out; one that
means the same in other words is written in those. Whatever else the grammar could not hold an
output to is an error that names the keyword and its place: nothing is left out in silence.

Keywords that JSON Schema does not define describe only, as it says itself.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kokuban.core.errors import RequestError
from kokuban.text.json_disjoint import Comparison
from kokuban.text.json_formats import FORMATS, KEPT_FORMATS
from kokuban.text.json_pattern import ecma_pattern

MAX_DEPTH = 100
"""Objects and lists inside each other: what reads a schema goes as deep as it does."""

MAX_NODES = 20_000
"""Values of a schema, of whatever kind."""

MAX_CHARACTERS = 2**18
"""Of all its texts and names: as many as any grammar has."""

Schema = Mapping[str, Any] | bool

_SCHEMA = ("additionalProperties", "additionalItems", "items", "unevaluatedProperties")
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NAMING = frozenset(("properties", "patternProperties", "required"))
_IN_PLACE = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "contains")
)
_REFUSED = (
    "not",
    "if",
    "contains",
    "propertyNames",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
)
"""What no grammar of ours can say, where it has an effect."""

_UNWRITABLE = re.compile(r"(?<!\\)(\\\\)*\\u(00[01]|007f)")
"""In JSON, a control character without an escape of one letter."""

_HINTS = (
    ("regex", "pattern"),
    ("float range", "minimum or maximum"),
    ("Resource", "$ref"),
    ("Pointer", "$ref"),
    ("Anchor", "$ref"),
    ("patternProperty", "patternProperties"),
    ("schema is false", "false"),
    ("schema must be an object", "properties"),
    ("Invalid type", "type"),
)
"""Words in what llguidance says, and the keyword that they are about."""


def prepared_schema(schema: object, param: str | None = None) -> Schema:
    """The schema in the words that llguidance follows.

    Args:
        schema: parsed JSON; not changed.
        param: the request field that it came in.

    Raises:
        RequestError: it is no schema, too deep, too large, or has a keyword that cannot be held to.
    """
    name = param or "the schema"
    if schema is None or not isinstance(schema, Mapping | bool):
        kind = "null" if schema is None else type(schema).__name__
        raise RequestError(f"{name}: a JSON schema is an object, not {kind}", param=param)
    if schema is False:
        raise RequestError(f"{name}: no JSON value is valid under the schema false", param=param)
    _check_size(schema, name, param)
    try:
        return _Preparation(schema, name, param).schema(schema, "#")
    except RecursionError:  # Only under a caller who is deep down already.
        raise RequestError(f"{name}: the schema is nested too deep", param=param) from None


def names_properties(schema: Schema) -> bool:
    """Whether the names of properties matter anywhere in a schema."""
    return any(
        isinstance(value, Mapping) and _NAMING & value.keys() for _, value in _values(schema)
    )


def keyword_of(message: str) -> str:
    """The keyword that a complaint of llguidance is about; "": none that is known."""
    return next((keyword for words, keyword in _HINTS if words in message), "")


def _check_size(schema: object, name: str, param: str | None) -> None:
    num_characters = 0
    for num_nodes, (depth, value) in enumerate(_values(schema), 1):
        if depth > MAX_DEPTH:
            raise RequestError(
                f"{name}: the schema is nested deeper than {MAX_DEPTH}; flatten it, or use $ref",
                param=param,
            )
        if num_nodes > MAX_NODES:
            raise RequestError(
                f"{name}: the schema has more than {MAX_NODES} values; make it smaller",
                param=param,
            )
        texts = [value] if isinstance(value, str) else value if isinstance(value, Mapping) else ()
        num_characters += sum(map(len, texts))
        if num_characters > MAX_CHARACTERS:
            raise RequestError(
                f"{name}: the schema has more than {MAX_CHARACTERS} characters; make it smaller",
                param=param,
            )


def _values(schema: object) -> Iterator[tuple[int, object]]:
    """Every value with its depth. Never deeper than one call, whatever the schema is."""
    waiting = [(1, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        children = value.values() if isinstance(value, Mapping) else value
        if isinstance(children, Iterable) and not isinstance(children, str):
            waiting += [(depth + 1, child) for child in children]


class _Preparation:
    """One walk through a schema, of at most MAX_DEPTH calls inside each other."""

    def __init__(self, root: Schema, name: str, param: str | None) -> None:
        self._comparison = Comparison(root)
        self._name = name
        self._param = param
        self._escapes = not names_properties(root)

    def schema(self, schema: object, path: str) -> Schema:
        """A schema at a place."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise self._error(path, f"a schema is an object or a boolean, not {_short(schema)}")
        made = {key: value for key, value in schema.items() if key != "x-guidance"}
        _drop_idle(made)
        _close(made)
        self._open_one_of(made)
        for keyword in _REFUSED:
            if keyword in made:
                raise self._error(f"{path}/{keyword}", f"the keyword {keyword!r} is not supported")
        self._check_types(made, path)
        self._check_counts(made, path)
        for keyword in ("const", "enum"):
            if keyword in made:
                made[keyword] = _plain(made[keyword])
                if any(_is_too_long(value) for _, value in _values(made[keyword])):
                    raise self._error(
                        f"{path}/{keyword}",
                        f"the keyword {keyword!r} holds a whole number of more than 63 bits, which "
                        f"is not supported",
                    )
                if not self._escapes and _UNWRITABLE.search(json.dumps(made[keyword])):
                    raise self._error(
                        f"{path}/{keyword}",
                        f"the keyword {keyword!r} holds a control character, which is not "
                        f"supported beside names of properties",
                    )
        self._inner(made, path)
        self._write_strings(made, path)
        return made

    def _open_one_of(self, made: dict[str, Any]) -> None:
        """Where alternatives exclude each other, one of them is any of them."""
        alternatives = made.get("oneOf")
        if isinstance(alternatives, list) and self._comparison.all_exclude(alternatives):
            del made["oneOf"]
            others = made.get("allOf")
            any_of = {"anyOf": alternatives}
            if "anyOf" in made:
                made["allOf"] = [*(others if isinstance(others, list) else []), any_of]
            else:
                made |= any_of

    def _inner(self, made: dict[str, Any], path: str) -> None:
        """Prepare the schemas inside of one."""
        for keyword, value in list(made.items()):
            place = f"{path}/{keyword}"
            if keyword in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
                named = {key: self.schema(each, f"{place}/{key}") for key, each in value.items()}
                if keyword == "patternProperties":
                    named = {ecma_pattern(key): each for key, each in named.items()}
                made[keyword] = named
            elif keyword in _SCHEMAS and isinstance(value, list):
                made[keyword] = [self.schema(each, f"{place}/{i}") for i, each in enumerate(value)]
            elif keyword in _SCHEMA:
                made[keyword] = self.schema(value, place)

    def _check_types(self, made: Mapping[str, Any], path: str) -> None:
        kinds = made.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in _TYPES:
                known = ", ".join(_TYPES)
                raise self._error(
                    f"{path}/type", f"{_short(kind)} is no type of JSON; there are {known}"
                )
        required = made.get("required", [])
        if not (isinstance(required, list) and all(isinstance(each, str) for each in required)):
            raise self._error(f"{path}/required", f"{_short(required)} is no list of names")

    def _check_counts(self, made: dict[str, Any], path: str) -> None:
        for keyword in _COUNTS:
            value = made.get(keyword)
            if isinstance(value, float) and value.is_integer():
                value = made[keyword] = int(value)
            if value is not None and (type(value) is not int or value < 0):
                raise self._error(
                    f"{path}/{keyword}", f"{_short(value)} is no whole number of 0 or more"
                )
        wanted, required = made.get("minProperties"), made.get("required")
        num_required = len(set(required)) if isinstance(required, list) else 0
        if isinstance(wanted, int) and wanted > max(1, num_required):
            # Names may come twice, and count once.
            raise self._error(
                f"{path}/minProperties",
                f"the keyword 'minProperties' is not supported above 1 unless so many properties "
                f"are required: {wanted} is above {num_required}",
            )

    def _write_strings(self, made: dict[str, Any], path: str) -> None:
        """Put pattern and format into the words that mean what JSON Schema means by them."""
        pattern = made.get("pattern")
        if isinstance(pattern, str):
            made["pattern"] = ecma_pattern(pattern)
        form = made.get("format")
        if not isinstance(form, str) or form in KEPT_FORMATS:
            return
        del made["format"]
        if not _may_be_string(made):
            return  # It says nothing about other values.
        if form not in FORMATS:
            known = ", ".join(sorted({*FORMATS, *KEPT_FORMATS}))
            raise self._error(
                f"{path}/format",
                f"the keyword 'format' is not supported with {_short(form)}; there are {known}: "
                f"use a pattern instead",
            )
        parts = [{"pattern": each} for each in FORMATS[form]]
        others = made.get("allOf")
        made["allOf"] = [*(others if isinstance(others, list) else []), *parts]

    def _error(self, path: str, problem: str) -> RequestError:
        return RequestError(f"{self._name}: at {path[:256]}: {problem}", param=self._param)


def _drop_idle(made: dict[str, Any]) -> None:
    """Take out what has no effect where it stands."""
    sees_if = "unevaluatedItems" in made or "unevaluatedProperties" in made
    if "if" not in made or not (sees_if or "then" in made or "else" in made):
        for keyword in ("if", "then", "else"):
            made.pop(keyword, None)
    if "contains" not in made:
        for keyword in ("minContains", "maxContains"):
            made.pop(keyword, None)
    idle: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("uniqueItems", lambda value: value is False),
        ("propertyNames", lambda value: value is True or value == {}),
        ("unevaluatedItems", lambda value: value is True or value == {}),
        ("unevaluatedProperties", lambda value: value is True or value == {}),
        ("dependentRequired", lambda value: isinstance(value, dict) and not any(value.values())),
        ("dependentSchemas", lambda value: value == {}),
        ("dependencies", lambda value: value == {}),
        ("$dynamicAnchor", lambda _: True),  # It names something; who points there is refused.
        ("$recursiveAnchor", lambda _: True),
    )
    for keyword, is_idle in idle:
        if keyword in made and is_idle(made[keyword]):
            del made[keyword]


def _close(made: dict[str, Any]) -> None:
    """Where no schema lies over another, what is not evaluated is simply what is additional."""
    if _IN_PLACE & made.keys():
        return
    for open_, closed in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if open_ in made:
            value = made.pop(open_)
            made.setdefault(closed, value)


def _may_be_string(made: Mapping[str, Any]) -> bool:
    kinds = made.get("type", "string")
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _plain(value: Any) -> Any:
    """A JSON value with its whole numbers written as such: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _is_too_long(value: object) -> bool:
    return isinstance(value, int) and value.bit_length() > 63


def _short(value: object) -> str:
    return json.dumps(value)[:64]
