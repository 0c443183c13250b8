"""JSON texts of a schema, drawn at random: such as it takes, odd ones, and whole bodies.

Texts and not Python values, because NaN, 1e400, half of a surrogate pair and a key that occurs
twice are part of it.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.parameter_values import JUNK

Schema = Mapping[str, Any]

MAX_DEPTH = 7
MAX_OPTIONAL = 4
"""Optional fields of an object that are drawn at once."""

STRINGS = (
    '"p"', '"m"', '""', '"é😀"', '"\\u0000"', '"<|im_start|>"', '"<tool_call>"', '"{\\"a\\":1}"',
    '"' + "x" * 3000 + '"', '"{{ 7 * 7 }}"', '"a\\u0301\\u202e"', '"\\n\\n"', '"s"', '"f"',
    '"text"', '"input_text"', '"\\ud83d"', '"data:image/png;base64,AAAA"', '"msg_1"', '"resp_1"',
)  # fmt: skip

_DEEP_SCHEMA = '{"type":"object","properties":{"a":' * 40 + "{}" + "}}" * 40
_SCHEMAS = (
    "{}", '{"type":"object"}', '{"type":"object","properties":{"a":{"type":"integer"}}}',
    '{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"]}',
    '{"type":"array","items":{"$ref":"#"},"maxItems":2}', '{"$ref":"#/nowhere"}', '{"$ref":"#"}',
    '{"type":"string","pattern":"^(a|b)*c$","maxLength":9}', '{"pattern":"(?<=a)b"}',
    '{"type":"integer","minimum":1e300}', '{"enum":[]}', '{"not":{}}', '{"format":"nonsense"}',
    '{"type":"string","minLength":3,"maxLength":2}', '{"const":{"a":[1,2.5,null]}}',
    '{"anyOf":[{"type":"string"},{"type":"number","multipleOf":0.01}]}', '{"type":["null",7]}',
    '{"patternProperties":{"(":{}}}', '{"type":"object","required":"a"}', '{"type":"nothing"}',
    '{"type":"array","minItems":1000000000}', '{"type":"string","minLength":100000000000}',
    '{"allOf":[{"type":"string"},{"type":"integer"}]}', _DEEP_SCHEMA,
    '{"enum":[' + ",".join(f'"v{i}"' for i in range(400)) + "]}",
)  # fmt: skip
_REGEXES = (
    '"a+"', '"(a|b){1,4}"', '"("', '"(a*)*b"', '"a{1000000}"', '"\\\\d{2}-\\\\w"', '"[é-😀]?x"',
    '"(?=a)a"', '"\\\\1"', '"^$"', '"' + "(" * 300 + "a" + ")" * 300 + '"', '"[^\\\\s\\\\S]"',
)  # fmt: skip
_GRAMMARS = (
    '"root ::= \\"a\\""', '"start: \\"a\\" start?"', '"root ::= root"', '"root ::= [a-z]+"',
    '"start: nope"', '"%import nope"', '"root ::= (\\"a\\" | root root)*"', '"\\u0000"',
    '"start: /(a|b)*/\\n%ignore /./"', '"root ::= ' + "(" * 200 + '"',
)  # fmt: skip

_FORMS = tuple(f'{{"type":"json_schema","schema":{schema}}}' for schema in _SCHEMAS)
_BY_NAME: Mapping[str, Sequence[str]] = {
    "model": ('"m"',),
    "schema": _SCHEMAS,
    "parameters": _SCHEMAS,
    "input_schema": _SCHEMAS,
    "json_schema": _SCHEMAS,
    "guided_json": _SCHEMAS,
    "response_format": (
        '{"type":"json_object"}', '{"type":"text"}',
        *(f'{{"type":"json_schema","json_schema":{{"name":"n","schema":{s}}}}}' for s in _SCHEMAS),
    ),
    "structured_outputs": (
        *(f'{{"json":{s}}}' for s in _SCHEMAS), *(f'{{"regex":{r}}}' for r in _REGEXES),
        *(f'{{"grammar":{g}}}' for g in _GRAMMARS), '{"choice":["a","a",""]}',
    ),
    "format": _FORMS,
    "guided_regex": _REGEXES,
    "regex": _REGEXES,
    "guided_grammar": _GRAMMARS,
    "grammar": _GRAMMARS,
    "choice": ('["a","b"]', '["' + "a" * 900 + '"]', json.dumps([f"c{i}" for i in range(900)])),
    "tools": (
        *(
            f'[{{"type":"function","function":{{"name":"f","strict":true,"parameters":{s}}}}},'
            f'{{"type":"function","name":"f","parameters":{s},"input_schema":{s}}}]'
            for s in _SCHEMAS
        ),
        '[{"type":"function","function":{"name":"f","parameters":{}}}]', '[{"name":"f"}]',
        '[{"name":"f","input_schema":{"type":"object"}},{"name":"g","input_schema":{}}]',
        '[{"type":"function","name":"f","parameters":{"type":"object"}}]',
        '[{"type":"web_search"},{"type":"custom","name":"c"}]',
        '[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":"("}}]',
    ),
    "tool_choice": (
        '"auto"', '"none"', '"required"', '{"type":"function","function":{"name":"f"}}',
        '{"type":"function","name":"f"}', '{"type":"any"}', '{"type":"tool","name":"f"}',
        '{"type":"auto","disable_parallel_tool_use":true}', '{"type":"tool","name":"nope"}',
        '{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}',
    ),
    "stream": ("true", "true", "false"),
    "encoding_format": ('"float"', '"base64"'),
    "arguments": ('"{}"', '"{\\"a\\":"', '{"a":1}', '"[1]"', '"' + "[" * 500 + '"'),
}  # fmt: skip
"""What a type alone would hardly ever hit, for the fields of these names."""


class Values:
    """Draws the texts of one case.

    Args:
        rng: only source of chance.
        schemas: `components/schemas` of the OpenAPI document.
        odd: chance that a value is replaced by junk, at each place.
    """

    def __init__(self, rng: random.Random, schemas: Mapping[str, Schema], odd: float) -> None:
        self._rng = rng
        self._schemas = schemas
        self._odd = odd

    def text(self, schema: Schema, name: str = "", depth: int = 0) -> str:
        """A value of a schema, or something else.

        Args:
            name: of the field that it is for.
        """
        rng = self._rng
        if rng.random() < self._odd:
            return rng.choice(JUNK)
        if name in _BY_NAME and rng.random() < 0.8:
            return rng.choice(_BY_NAME[name])
        if depth > MAX_DEPTH:
            return "null"
        if "$ref" in schema:
            return self.text(self._schemas[schema["$ref"].rpartition("/")[2]], name, depth + 1)
        for union in ("anyOf", "oneOf", "allOf"):
            if union in schema and "type" not in schema:  # Beside a type: conditions.
                return self.text(rng.choice(schema[union]), "", depth + 1)
        if "const" in schema:
            return json.dumps(schema["const"])
        if "enum" in schema:
            return json.dumps(rng.choice(schema["enum"]))
        return self._typed(schema, depth)

    def _typed(self, schema: Schema, depth: int) -> str:
        kind = schema.get("type")
        rng = self._rng
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            items = schema.get("items", {})
            return "[" + ",".join(self.text(items, "", depth + 1) for _ in range(_few(rng))) + "]"
        if kind == "boolean":
            return rng.choice(("true", "false"))
        if kind in ("integer", "number"):
            return self._number(schema)
        if kind == "string":
            return rng.choice(STRINGS)
        return "null" if kind == "null" else rng.choice(JUNK)

    def _number(self, schema: Schema) -> str:
        low, high = schema.get("minimum", -1), schema.get("maximum", 3)
        edges = [low, high, 0, 1, 2, 97, 511]
        if schema["type"] == "number":
            edges += [0.5, 1e-9, 1e9]
        return json.dumps(self._rng.choice(edges))

    def _object(self, schema: Schema, depth: int) -> str:
        rng = self._rng
        properties: Mapping[str, Schema] = schema.get("properties", {})
        required = [name for name in schema.get("required", ()) if rng.random() > self._odd]
        optional = [name for name in properties if name not in required]
        most = min(len(optional), MAX_OPTIONAL if depth < 3 else 2)
        names = required + rng.sample(optional, rng.randint(0, most))
        fields = [
            f"{json.dumps(name)}:{self.text(properties.get(name, {}), name, depth + 1)}"
            for name in names
        ]
        more = schema.get("additionalProperties")
        if more and (not properties or rng.random() < 0.05):
            inner: Schema = more if isinstance(more, dict) else {}
            key = rng.choice(('"a"', '"97"', '""', '"é"', '"' + "k" * 200 + '"'))
            fields.append(f"{key}:{self.text(inner, '', depth + 1)}")
        if fields and rng.random() < self._odd:
            fields.append(fields[0])
        return "{" + ",".join(fields) + "}"


def _few(rng: random.Random) -> int:
    return rng.choices((0, 1, 2, 3, 40), (10, 50, 25, 14, 1))[0]


def huge_body(rng: random.Random) -> bytes:
    """A body that is large, deep or long in one place."""
    deep = rng.choice((500, 5_000, 60_000))
    return rng.choice(
        (
            b'{"model":"m","messages":' + b"[" * deep + b"]" * deep + b"}",
            b'{"model":"m","messages":[{"role":"user","content":"p"}],"x":' + b'{"a":' * deep
            + b"1" + b"}" * deep + b"}",
            b'{"model":"m","prompt":"' + b"x" * rng.choice((600, 70_000, 900_000)) + b'"}',
            b'{"model":"m","prompt":[' + b"97," * rng.choice((600, 50_000)) + b"97]}",
            b'{"model":"m","prompt":"p","seed":' + b"9" * rng.choice((30, 5000)) + b"}",
            b'{"model":"m","input":[' + b'"p",' * 3000 + b'"p"]}',
            b'{"model":"m","prompt":"p","max_tokens":2,' + b'"k":1,' * 30_000 + b'"k":1}',
            b'{"model":"m","prompt":"p","max_tokens":1,"stop":["' + b"\\u00e9" * 20_000 + b'"]}',
            b'{"model":"m","max_tokens":2,"messages":[' + b'{"role":"user","content":"p"},' * 3000
            + b'{"role":"user","content":"p"}]}',
            b'{"model":"m","prompt":"p","max_tokens":1,"temperature":1' + b"0" * 400 + b"}",
            b'{"tokens":[' + b"97," * 40_000 + b"97]}",
        )
    )  # fmt: skip
