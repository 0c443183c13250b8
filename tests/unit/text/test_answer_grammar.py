"""Grammars of forced calls, judged by the library that will follow them."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from kokuban.core.errors import RequestError
from kokuban.text.answer_grammar import MAX_CALLS, AnswerGrammar, OfferedTool, blamed
from kokuban.text.answer_parser import AnswerParser, AnswerStyle
from kokuban.text.call_styles import STYLES
from kokuban.text.grammar import json_schema_grammar
from kokuban.text.parts import whole_calls
from kokuban.text.reasoning import Thoughts

BYTES = LLTokenizer("byte")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


def tool(name: str = "f", parameters: Any = CITY, **options: Any) -> OfferedTool:
    return OfferedTool(name=name, parameters=parameters, param="tools[0]", **options)


def grammar_of(
    style: str, thoughts: Thoughts = Thoughts.NONE, specials: dict[str, int] | None = None
) -> AnswerGrammar:
    reasons = thoughts is not Thoughts.NONE
    return AnswerGrammar(
        style=AnswerStyle(STYLES[style], reasons), specials=specials or {}, thoughts=thoughts
    )


def matches(grammar: str, text: str) -> bool:
    """Whether the text is a whole answer under the grammar."""
    matcher = LLMatcher(BYTES, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def called(style: str, *arguments: dict[str, Any], name: str = "f") -> str:
    return STYLES[style].write([{"name": name, "arguments": each} for each in arguments])


@pytest.fixture(params=sorted(STYLES))
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


OSLO, ROME = {"city": "Oslo"}, {"city": "Rome"}


def test_a_forced_answer_is_calls_and_nothing_else(style: str) -> None:
    grammar = grammar_of(style).forced([tool(), tool("g", None)], None)

    assert matches(grammar, called(style, OSLO))
    assert matches(grammar, called(style, OSLO, ROME))
    assert matches(grammar, called(style, {}, name="g"))
    assert not matches(grammar, called(style, {"town": "Oslo"}))
    assert not matches(grammar, called(style, {"city": 7}))
    assert not matches(grammar, called(style, {}))
    assert not matches(grammar, called(style, OSLO, name="h"))
    assert not matches(grammar, called(style, {"x": 1}, name="g"))
    assert not matches(grammar, "Hello")
    assert not matches(grammar, "")
    assert not matches(grammar, f"{called(style, OSLO)} and")


def test_a_limit_of_calls_is_kept(style: str) -> None:
    one = grammar_of(style).forced([tool()], 1)
    many = grammar_of(style).forced([tool()], None)

    assert matches(one, called(style, OSLO))
    assert not matches(one, called(style, OSLO, OSLO))
    assert matches(many, called(style, *[OSLO] * MAX_CALLS))
    assert not matches(many, called(style, *[OSLO] * (MAX_CALLS + 1)))


def test_words_are_free_until_a_call_begins(style: str) -> None:
    grammar = grammar_of(style).free([tool()], None)

    if STYLES[style].mark is not None:
        assert matches(grammar, 'int f()\n{\n}\n[1]\n{"name": "f"}')
    for text in ("", "Hello.", "A {brace} or [two],\n\n  and `code`.\n", "< <tool [TOOL"):
        assert matches(grammar, text)
    assert matches(grammar, called(style, OSLO))
    assert matches(grammar, f"Let me see.\n{called(style, OSLO, ROME)}")
    assert not matches(grammar, called(style, {"town": "Oslo"}))
    assert not matches(grammar, f"Let me see.\n{called(style, {'town': 'Oslo'})}")


def test_a_tool_that_is_not_strict_takes_any_object(style: str) -> None:
    grammar = grammar_of(style).free([tool(), tool("g", CITY, is_bound=False)], None)

    assert matches(grammar, called(style, {"x": [1]}, name="g"))
    assert not matches(grammar, called(style, {"x": [1]}, name="f"))


@pytest.mark.parametrize("thoughts", [Thoughts.MAY_BEGIN, Thoughts.GO_ON])
def test_thoughts_may_hold_anything(style: str, thoughts: Thoughts) -> None:
    write = grammar_of(style, thoughts)
    opening = "<think>\n" if thoughts is Thoughts.MAY_BEGIN else ""
    thought = f"{opening}Shall I\n{{call}} <tool_call>? [TOOL_CALLS]\n</think>\n\n"
    call, wrong = called(style, OSLO), called(style, {"town": 1})

    for grammar in (write.forced([tool()], None), write.free([tool()], None)):
        assert matches(grammar, thought + call)
        assert not matches(grammar, thought + wrong)
        assert matches(grammar, call) == (thoughts is Thoughts.MAY_BEGIN)
    formed = write.formed(json_schema_grammar(PERSON), (), None)
    assert matches(formed, thought + '{"name": "Bob"}')
    assert not matches(formed, thought + "Bob")


def test_an_answer_with_a_form_may_be_a_call_instead(style: str) -> None:
    """Both may begin with a brace, and even with the key "name"."""
    grammar = grammar_of(style).formed(json_schema_grammar(PERSON), [tool()], None)

    assert matches(grammar, '{"name": "Bob"}')
    assert matches(grammar, '{"name": "f"}')
    assert matches(grammar, called(style, OSLO))
    assert not matches(grammar, called(style, {"town": 1}))
    assert not matches(grammar, "Bob")


@pytest.mark.parametrize(
    "value", ['a"b', "c\\d", "é", "世", "😀", "\u2028", "x\ny", "", "</tool_call>"]
)
def test_values_of_enums_come_back_exactly(style: str, value: str) -> None:
    """B52: what the grammar lets through is what the parser reads."""
    schemas: list[dict[str, Any]] = [
        {"enum": [value]},
        {"const": value},
        {"anyOf": [{"const": value}, {"const": 7}, {"const": None}, {"const": True}]},
    ]
    for schema in schemas:
        parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
        text = called(style, {"v": value})

        assert matches(grammar_of(style).forced([tool("f", parameters)], None), text)
        parser = AnswerParser(STYLES[style], tools={"f": ()})
        [call] = whole_calls([*parser.feed(text), *parser.finish()])
        assert json.loads(call.arguments) == {"v": value}


@pytest.mark.parametrize("name", ["get_weather", 'a"b', "naïve", "a/b c", "\\"])
def test_names_are_written_as_they_are(style: str, name: str) -> None:
    grammar = grammar_of(style).forced([tool(name)], None)

    assert matches(grammar, called(style, OSLO, name=name))


def test_schemas_may_refer_to_their_own_definitions(style: str) -> None:
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}},
        "required": ["at"],
        "$defs": {"place": {"enum": ["here", "there"]}},
    }
    write = grammar_of(style)
    for grammar in (
        write.forced([tool("f", parameters)], None),
        write.formed(json_schema_grammar(PERSON), [tool("f", parameters)], None),
    ):
        assert matches(grammar, called(style, {"at": "here"}))
        assert not matches(grammar, called(style, {"at": "home"}))


@pytest.mark.parametrize(
    ("parameters", "arguments", "is_valid"),
    [
        (None, {}, True),
        (None, {"a": 1}, False),
        ({}, {"a": 1}, False),
        ({"type": "object"}, {"a": 1}, True),
        ({"properties": {"a": {}}}, {"a": 1}, True),
        ({"properties": {"a": {}}}, {"b": 1}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
    ],
)
def test_only_listed_properties_unless_the_schema_says_otherwise(
    parameters: Any, arguments: dict[str, Any], is_valid: bool
) -> None:
    grammar = grammar_of("hermes").forced([tool("f", parameters)], None)

    assert matches(grammar, called("hermes", arguments)) is is_valid


def test_marks_that_are_special_tokens_are_named_by_their_ids() -> None:
    specials = {"<tool_call>": 300, "</tool_call>": 301, "<think>": 302}
    write = grammar_of("hermes", Thoughts.MAY_BEGIN, specials)

    for grammar in (write.forced([tool()], None), write.free([tool()], None)):
        source = json.loads(grammar)["grammars"][0]["lark_grammar"]
        assert '<[300]> "\\n"' in source or 'calls: "\\n" call' in source
        assert '"\\n" <[301]>' in source
        assert "thoughts: <[302]> until_close\n" in source
        assert '"<tool_call>' not in source
        assert LLMatcher.validate_grammar(grammar) == ""


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"type": ["object", "null"]},
        {"type": "object", "properties": {"a": json.loads('{"not":' * 200 + "{}" + "}" * 200)}},
    ],
)
def test_parameters_that_cannot_be_followed_are_refused_with_the_tools_name(
    parameters: Any,
) -> None:
    with pytest.raises(RequestError, match="the tool 'find'") as caught:
        grammar_of("hermes").forced([tool("find", parameters)], None)

    assert (caught.value.param or "").startswith("tools[0]")


def test_tools_that_no_grammar_could_hold_are_refused_before_all_are_read() -> None:
    long = {"type": "object", "properties": {"a": {"enum": ["a" * 99_999]}}}

    with pytest.raises(RequestError, match="more than 262144 characters; offer fewer tools"):
        grammar_of("hermes").forced([tool(f"t{i}", long) for i in range(3)], None)


def test_an_error_that_comes_late_is_put_down_to_its_tool() -> None:
    """What only the library knows: a pattern that is none, a reference to nothing."""
    error = RequestError("the grammar is wrong", param="tools")
    wrong = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}

    found = blamed(error, [tool("good"), tool("bad", wrong)])

    assert "the tool 'bad'" in str(found)
    assert found.param == "tools[0]"
    assert blamed(error, [tool("good")]) is error
