"""Makes the one text that says what an output must match: `SamplingParams.grammar`.

Every way to ask for a form (a JSON schema, a regular expression, some choices, a grammar in Lark or
GBNF) ends as a text that llguidance reads, so that engine and sampler know one kind of constraint.
Nothing is compiled here: whoever runs the text does that, and refuses what cannot be built.
"""

import json
from collections.abc import Mapping, Sequence

from kokuban.core.errors import RequestError
from kokuban.text.json_schema import (
    MAX_CHARACTERS,
    Schema,
    names_properties,
    prepared_schema,
)

MAX_WHITESPACE = 20
"""Blanks in a row between two marks of a JSON text. JSON has no limit, and a small model may fall
into them and never come out."""

MAX_CHOICES = 10_000

MAX_GBNF = 2**16
"""Characters of a grammar in GBNF, which is rewritten here."""

_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": f"[ \\t\\r\\n]{{1,{MAX_WHITESPACE}}}",
    "lenient": False,
    "coerce_one_of": False,
}
"""How llguidance reads a schema: what it does not know is an error, never left out."""

_SHORT_ESCAPES = '"\\bfnrt'
"""Where names of properties matter: with a number behind an escape a name could be written such
that it is taken for another one."""

_MARKS = frozenset(r"\.+*?()|[]{}^$#&-~/")


def json_schema_grammar(schema: object, *, param: str | None = None) -> str:
    """The grammar of JSON texts that are valid under a schema, properties in its order.

    Args:
        schema: an object, or true for any JSON value.
        param: the request field that the schema came in, for errors.

    Raises:
        RequestError: it is no schema, or one that cannot be followed; names keyword and place.
    """
    return _grammar("json_schema", _with_options(prepared_schema(schema, param)))


def json_object_grammar() -> str:
    """The grammar of any JSON object."""
    return _grammar("json_schema", _with_options({"type": "object"}))


def json_rule(schema: object, *, param: str | None = None) -> str:
    """The right side of a Lark rule that matches what `json_schema_grammar` does.

        f"start: {lark_text('<tool_call>')} call\\ncall: {json_rule(parameters)}"

    Raises:
        RequestError: see `json_schema_grammar`.
    """
    return "%json " + _dumps(_with_options(prepared_schema(schema, param)))


def lark_text(text: str) -> str:
    """A Lark terminal that matches this text and no other."""
    return _dumps(text)


def lark_grammar(source: str) -> str:
    """A grammar that is written in llguidance's Lark already."""
    return _grammar("lark_grammar", source)


def regex_grammar(pattern: str, *, param: str | None = None) -> str:
    """The grammar of texts that a regular expression matches from their first to their last
    character.

    Raises:
        RequestError: the expression is too long.
    """
    _check_length(len(pattern), MAX_CHARACTERS, param or "regex", param)
    return lark_grammar("start: REGEX\nREGEX: " + _lark_regex(pattern))


def choice_grammar(choices: Sequence[str], *, param: str | None = None) -> str:
    """The grammar of some texts.

    Raises:
        RequestError: there is none, or there are too many, or they are too long.
    """
    if not choices:
        raise RequestError(
            f"{param or 'choice'} is empty; give at least one text to choose", param=param
        )
    if len(choices) > MAX_CHOICES:
        raise RequestError(
            f"{param or 'choice'} has {len(choices)} texts; the limit is {MAX_CHOICES}", param=param
        )
    _check_length(sum(map(len, choices)), MAX_CHARACTERS, param or "choice", param)
    return regex_grammar("|".join(map(_escaped, choices)), param=param)


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


def written_grammar(source: str, *, param: str | None = None) -> str:
    """A grammar that somebody has written in Lark, or in GBNF as llama.cpp reads it.

    Raises:
        RequestError: it is too long, or GBNF with something that cannot be said in Lark.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

    name = param or "grammar"
    _check_length(len(source), MAX_CHARACTERS, name, param)
    if is_lark_syntax(source):
        return lark_grammar(source)
    _check_length(len(source), MAX_GBNF, name, param, what=" of GBNF")
    try:
        return lark_grammar(gbnf_to_lark(source))
    except (Exception, RecursionError) as error:  # noqa: BLE001 - the library has no other
        problem = " ".join(str(error).split())[:300] or type(error).__name__
        raise RequestError(
            f"{name} is neither Lark (a rule 'start:') nor GBNF (a rule 'root ::=') "
            f"that can be read: {problem}",
            param=param,
        ) from None


def _check_length(length: int, limit: int, name: str, param: str | None, *, what: str = "") -> None:
    """What is too long is refused before anything looks at each of its characters."""
    if length > limit:
        raise RequestError(
            f"{name} has {length} characters; the limit{what} is {limit}: make it smaller",
            param=param,
        )


def _grammar(kind: str, source: object) -> str:
    return _dumps({"grammars": [{kind: source}]})


def _with_options(schema: Schema) -> dict[str, object]:
    # Whatever a client has put there would change what is ignored.
    options: dict[str, object] = dict(_OPTIONS)
    if names_properties(schema):
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return {**(schema if isinstance(schema, Mapping) else {}), "x-guidance": options}


def _dumps(value: object) -> str:
    # Half of a surrogate pair, which is no character, stays an escape, and is refused as such.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _is_text(text) else json.dumps(value, separators=(",", ":"))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
