"""Whether schemas exclude each other."""

from typing import Any

import pytest

from kokuban.text.json_disjoint import Comparison
from kokuban.text.json_schema import prepared_schema


def tagged(kind: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": kind}, "required": ["kind"], **more}


A, B = tagged({"const": "a"}), tagged({"enum": ["b", "c"]})
ROOT = {"$defs": {"a": A, "b": B, "via": {"$ref": "#/$defs/b"}, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("schemas", "exclude"),
    [
        ([{"type": "string"}, {"type": "integer"}, {"type": ["null", "object"]}], True),
        ([{"type": "number"}, {"type": "integer"}], False),
        ([{"type": ["string", "null"]}, {"type": ["integer", "null"]}], False),
        ([{"type": "string"}, {}], False),
        ([{"type": "string"}, {"const": 1}], True),
        ([{"type": "string"}, {"const": "x"}], False),
        ([{"const": 1}, {"const": True}, {"const": "1"}], True),
        ([{"const": 1}, {"enum": [2, 1.0]}], False),
        ([A, B], True),
        ([A, A], False),
        ([A, tagged({"const": "b"}, required=[])], False),
        ([A, {**B, "type": ["object", "null"]}], False),
        ([{**A, "type": ["object", "null"]}, {**B, "type": ["object", "null"]}], False),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/via"}], True),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], False),
        ([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/loop"}], False),
        ([{"$ref": "#/$defs/none"}, {"type": "string"}], False),
        ([{"$ref": "#/$defs/a", "title": "x"}, B], False),
        ([True, False], False),
        ([{"type": "string"}], True),
    ],
)
def test_only_what_is_plain_to_see_counts(schemas: list[Any], exclude: bool) -> None:
    assert Comparison(ROOT).all_exclude(schemas) is exclude


def test_a_union_of_thousands_of_constants_takes_no_time() -> None:
    many = [{"const": number} for number in range(9_999)]

    assert Comparison({}).all_exclude(many)
    assert not Comparison({}).all_exclude([*many, {"enum": ["x", 5.0]}])


def looped(name: str, num_tags: int) -> dict[str, Any]:
    """A type whose required properties are all of that type again."""
    tags = {f"p{number}": {"$ref": f"#/$defs/{name}"} for number in range(num_tags)}
    return {"type": "object", "properties": tags, "required": list(tags)}


def test_types_that_hold_themselves_are_compared_once() -> None:
    root = {"$defs": {"a": looped("a", 20), "b": looped("b", 20)}}

    assert not Comparison(root).all_exclude([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}])


def test_what_takes_too_long_to_compare_is_a_doubt() -> None:
    comparison = Comparison({})
    few = [tagged({"const": number}) for number in range(80)]
    many = [tagged({"const": number}) for number in range(2_000)]
    wide = [{"enum": list(range(0, 4_000, 2))}, {"enum": [1, [2]] * 1_000}]

    assert comparison.all_exclude(few)
    assert not comparison.all_exclude(many)
    assert not Comparison({}).all_exclude(wide)


def test_a_tagged_union_by_references_is_any_of_its_members() -> None:
    """As pydantic writes it."""
    union = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "discriminator": {}, **ROOT}

    prepared = prepared_schema(union)

    assert isinstance(prepared, dict)
    assert "oneOf" not in prepared
    assert prepared["anyOf"] == union["oneOf"]


def test_beside_another_any_of_both_count() -> None:
    strings, numbers = {"type": "string"}, {"type": "number"}

    prepared = prepared_schema({"oneOf": [strings, numbers], "anyOf": [strings, {"const": 1}]})

    assert prepared == {
        "anyOf": [strings, {"const": 1}],
        "allOf": [{"anyOf": [strings, numbers]}],
    }
