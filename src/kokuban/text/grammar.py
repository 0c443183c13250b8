"""Makes the one text that says what an output must match: `SamplingParams.grammar`.

Every way to ask for a form (a JSON schema, a regular expression, some choices, a grammar in Lark or
GBNF) ends as a text that llguidance reads, so that engine and sampler know one kind of constraint.
Nothing is compiled here: whoever runs the text does that, and refuses what cannot be built.
"""

import json
from collections.abc import Mapping, Sequence

from kokuban.core.errors import RequestError
from kokuban.text.json_schema import check_schema

MAX_WHITESPACE = 20
"""Blanks in a row between two marks of a JSON text. JSON has no limit, and a small model may fall
into them and never come out."""

MAX_CHOICES = 10_000

_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": f"[ \\t\\r\\n]{{1,{MAX_WHITESPACE}}}",
    "lenient": False,
    "coerce_one_of": False,
}
"""How llguidance reads a schema: what it does not know is an error, never left out."""

_MARKS = frozenset(r"\.+*?()|[]{}^$#&-~/")

Schema = Mapping[str, object] | bool


def json_schema_grammar(schema: object, *, param: str | None = None) -> str:
    """The grammar of JSON texts that are valid under a schema, properties in its order.

    Args:
        schema: an object, or true for any JSON value.
        param: the request field that the schema came in, for errors.

    Raises:
        RequestError: it is no schema, or one that cannot be followed; names keyword and place.
    """
    return _grammar("json_schema", _with_options(check_schema(schema, param)))


def json_object_grammar() -> str:
    """The grammar of any JSON object."""
    return _grammar("json_schema", _with_options({"type": "object"}))


def json_rule(schema: object, *, param: str | None = None) -> str:
    """The right side of a Lark rule that matches what `json_schema_grammar` does.

        f"start: {lark_text('<tool_call>')} call\\ncall: {json_rule(parameters)}"

    Raises:
        RequestError: see `json_schema_grammar`.
    """
    return "%json " + _dumps(_with_options(check_schema(schema, param)))


def lark_text(text: str) -> str:
    """A Lark terminal that matches this text and no other."""
    return _dumps(text)


def lark_grammar(source: str) -> str:
    """A grammar that is written in llguidance's Lark already."""
    return _grammar("lark_grammar", source)


def regex_grammar(pattern: str) -> str:
    """The grammar of texts that a regular expression matches from their first to their last
    character."""
    return lark_grammar("start: REGEX\nREGEX: " + _lark_regex(pattern))


def choice_grammar(choices: Sequence[str], *, param: str | None = None) -> str:
    """The grammar of some texts.

    Raises:
        RequestError: there is none, or there are too many.
    """
    if not choices:
        raise RequestError(
            f"{param or 'choice'} is empty; give at least one text to choose", param=param
        )
    if len(choices) > MAX_CHOICES:
        raise RequestError(
            f"{param or 'choice'} has {len(choices)} texts; the limit is {MAX_CHOICES}", param=param
        )
    return regex_grammar("|".join(map(_escaped, choices)))


def _escaped(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join("\\" + mark if mark in _MARKS else mark for mark in text)


def _lark_regex(pattern: str) -> str:
    """The pattern between slashes, as Lark writes it: on one line, its own slashes escaped."""
    found, escaped = [], False
    for mark in pattern:
        if mark == "\n":
            found.append("n" if escaped else "\\n")
        else:
            found.append("\\/" if mark == "/" and not escaped else mark)
        escaped = mark == "\\" and not escaped
    return "/" + "".join(found) + "/"


def _grammar(kind: str, source: object) -> str:
    return _dumps({"grammars": [{kind: source}]})


def _with_options(schema: Schema) -> dict[str, object]:
    # Whatever a client has put there would change what is ignored.
    return {**(schema if isinstance(schema, Mapping) else {}), "x-guidance": _OPTIONS}


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
