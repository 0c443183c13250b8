"""The texts that say what an output must match."""

import json
from collections.abc import Callable

import pytest
from llguidance import LLMatcher

from kokuban.core.errors import RequestError
from kokuban.text.grammar import (
    choice_grammar,
    json_object_grammar,
    json_rule,
    json_schema_grammar,
    lark_grammar,
    lark_text,
    regex_grammar,
    written_grammar,
)


@pytest.mark.parametrize(
    "grammar",
    [
        json_schema_grammar({"type": "integer"}),
        json_schema_grammar(True),
        json_object_grammar(),
        regex_grammar(r"a/b\/[/\n]\\/"),
        regex_grammar("two\nlines"),
        choice_grammar(["", 'a"b', "c\\d", "x\ny", "😀", "\u2028", "a|b", "</tool_call>"]),
        lark_grammar(f"start: {lark_text('<call>')} call\ncall: {json_rule({'type': 'null'})}"),
    ],
)
def test_every_form_is_a_grammar_that_can_be_read(grammar: str) -> None:
    assert LLMatcher.validate_grammar(grammar) == ""


def test_a_client_cannot_have_keywords_of_its_schema_ignored() -> None:
    grammar = json_schema_grammar({"type": "integer", "x-guidance": {"lenient": True}})

    [only] = json.loads(grammar)["grammars"]
    assert only["json_schema"]["x-guidance"]["lenient"] is False


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (regex_grammar, "regex has 262145 characters; the limit is 262144"),
        (written_grammar, "grammar has 262145 characters; the limit is 262144"),
        (
            lambda text: written_grammar(text[:65_537]),
            "65537 characters; the limit of GBNF is 65536",
        ),
        (lambda text: choice_grammar([text[:99], text[99:]]), "choice has 262145 characters"),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_looked_at(
    make: Callable[[str], str], what: str
) -> None:
    with pytest.raises(RequestError, match=what):
        make("a" * 262_145)


@pytest.mark.parametrize("choices", [[], ["a"] * 10_001])
def test_the_number_of_choices_has_limits(choices: list[str]) -> None:
    with pytest.raises(RequestError, match="choice"):
        choice_grammar(choices, param="choice")
