"""Schemas in the words that llguidance follows, or a refusal that says where."""

import re
from typing import Any

import pytest

from kokuban.core.errors import RequestError
from kokuban.text.json_formats import FORMATS
from kokuban.text.json_pattern import ecma_pattern
from kokuban.text.json_schema import prepared_schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"title": "T", "description": "d", "default": 1, "examples": [1], "x-order": 3},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "string", "format": "uuid"},
    ],
)
def test_what_can_be_followed_stays_as_it_is(schema: Any) -> None:
    """B46: annotations are no reason to refuse a schema."""
    assert prepared_schema(schema) == schema


@pytest.mark.parametrize(
    ("schema", "prepared"),
    [
        ({"uniqueItems": False}, {}),
        ({"if": {"const": 1}}, {}),
        ({"then": {"const": 1}, "else": {"const": 2}}, {}),
        ({"minContains": 2}, {}),
        ({"propertyNames": True}, {}),
        ({"dependentRequired": {"a": []}}, {}),
        ({"$dynamicAnchor": "x"}, {}),
        ({"maxLength": 2.0}, {"maxLength": 2}),
        ({"const": {"a": [1.0, 1.5]}}, {"const": {"a": [1, 1.5]}}),
        ({"type": "integer", "format": "int64"}, {"type": "integer"}),
        ({"unevaluatedProperties": False}, {"additionalProperties": False}),
        (
            {"additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
            {"additionalProperties": {"type": "null"}},
        ),
        (
            {"prefixItems": [True], "unevaluatedItems": False},
            {"prefixItems": [True], "items": False},
        ),
        ({"x-guidance": {"lenient": True}}, {}),
    ],
)
def test_what_says_nothing_is_dropped_and_what_can_be_said_otherwise_is(
    schema: Any, prepared: Any
) -> None:
    assert prepared_schema({"allOf": [schema]}) == {"allOf": [prepared]}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": {}}, "#/not: the keyword 'not'"),
        ({"properties": {"a": {"uniqueItems": True}}}, "#/properties/a/uniqueItems"),
        ({"items": {"anyOf": [{"contains": {}}]}}, "#/items/anyOf/0/contains"),
        ({"if": {}, "then": {}}, "#/if"),
        ({"allOf": [{}], "unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"if": {}, "unevaluatedItems": False}, "#/if"),
        ({"$defs": {"x": {"propertyNames": {"maxLength": 3}}}}, "#/$defs/x/propertyNames"),
        ({"minProperties": 2}, "#/minProperties"),
        ({"minProperties": 3, "required": ["a", "b"]}, "3 is above 2"),
        ({"type": "string", "format": "hostname"}, '#/format: .* with "hostname"'),
        ({"format": "int64"}, "#/format"),
        ({"properties": {"a": {"const": "\x01"}}}, "#/properties/a/const: .* control character"),
        ({"enum": [2**64]}, "more than 63 bits"),
        ({"properties": {"bar": "bar"}}, '#/properties/bar: a schema is an object .* "bar"'),
        ({"items": [1]}, "#/items/0"),
        ({"type": ["string", "nothing"]}, '#/type: "nothing" is no type'),
        ({"type": {}}, "#/type: {} is no type"),
        ({"required": "a"}, '#/required: "a" is no list of names'),
        ({"minLength": -1}, "#/minLength: -1 is no whole number"),
        ({"maxItems": True}, "#/maxItems: true is no whole number"),
        ({"maxItems": 1.5}, "#/maxItems: 1.5 is no whole number"),
        ([], "a JSON schema is an object, not list"),
        (None, "a JSON schema is an object, not null"),
        (False, "no JSON value is valid"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_place(schema: Any, place: str) -> None:
    """B46: never dropped in silence."""
    with pytest.raises(RequestError, match=place.replace("$", r"\$")) as caught:
        prepared_schema(schema, "response_format")

    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format: ")


def test_depth_and_size_have_limits() -> None:
    """B48: without recursion on what is too deep."""
    deep: Any = {}
    for _ in range(5000):
        deep = {"items": deep}

    with pytest.raises(RequestError, match="nested deeper than 100"):
        prepared_schema(deep)
    with pytest.raises(RequestError, match="more than 20000 values"):
        prepared_schema({"enum": list(range(20_001))})
    with pytest.raises(RequestError, match="nested deeper than 100"):
        prepared_schema({"const": deep})
    for long in ({"pattern": "a" * 262_144}, {"a" * 262_145: {}}, {"enum": ["a" * 999] * 263}):
        with pytest.raises(RequestError, match="more than 262144 characters"):
            prepared_schema(long)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"^\s$", "\ufeff", True),
        (r"^\s$", "\u200b", False),
        (r"^\S$", "\ufeff", False),
        (r"^\S$", "x", True),
        (r"^[\sx]+$", " x\u00a0", True),
        (r"^[^\s]$", "\ufeff", False),
        (r"^[\S]$", "x", True),
        (r"^\\s$", "\\s", True),
        (r"^[\]\\s]$", "s", True),
        (r"^\/\d$", "/5", True),
    ],
)
def test_white_space_in_patterns_is_javascripts(pattern: str, text: str, matches: bool) -> None:
    """B09: shorthands of a pattern mean what they mean in JSON Schema."""
    written = ecma_pattern(pattern)
    pythons = re.sub(r"\\u\{(\w+)\}", lambda found: chr(int(found[1], 16)), written)
    pythons = re.sub(r"\[\[\^([^\]]*)\]\]", r"[^\1]", pythons)

    assert (re.search(pythons, text) is not None) is matches


@pytest.mark.parametrize(
    ("form", "text", "matches"),
    [
        ("date", "2024-02-29", True),
        ("date", "2023-02-29", False),
        ("date", "1900-02-29", False),
        ("date", "2000-02-29", True),
        ("date", "2023-04-31", False),
        ("time", "23:59:60Z", True),
        ("time", "22:59:60Z", False),
        ("time", "01:29:60+01:30", True),
        ("time", "01:29:60+01:31", False),
        ("time", "15:59:60.5-08:00", True),
        ("time", "15:59:60-07:00", False),
        ("time", "12:00:00+24:00", False),
        ("date-time", "1998-12-31T23:59:60Z", True),
        ("date-time", "1998-12-31T23:58:60Z", False),
        ("date-time", "1998-02-30T00:00:00Z", False),
        ("email", '"a b"@x.y', True),
        ("email", "a..b@x.y", False),
        ("email", "a@[127.0.0.1]", True),
        ("email", "a@[IPv6:::1]", True),
        ("ipv6", "::ffff:192.168.0.1", True),
        ("ipv6", "1::d6:192.168.0.1", True),
        ("ipv6", "1:2:3:4:5:6:7::", True),
        ("ipv6", "1:2:3:4:5:6:7:8:9", False),
        ("ipv6", "::256.0.0.1", False),
    ],
)
def test_formats_are_those_of_their_rfc(form: str, text: str, matches: bool) -> None:
    assert all(re.search(each, text) for each in FORMATS[form]) is matches
