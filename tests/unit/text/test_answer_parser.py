"""Tool calls and thoughts, read from the text of answers in the form of each model family."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.text.answer_parser import AnswerParser, style_of_template
from kokuban.text.call_styles import STYLES
from kokuban.text.parts import CallPart, Part, TextPart

CALL = '{"name": "f", "arguments": {"a": 1}}'
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
TOOLS = {"f": ("a", "b"), "g": ()}
F = ("call", "f", '{"a": 1}')


def joined(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """Neighbouring pieces put together; checks the numbers of the calls on the way."""
    found: list[tuple[str, ...]] = []
    num_calls = 0
    for part in parts:
        if isinstance(part, CallPart) and part.name is not None:
            assert part.number == num_calls
            num_calls += 1
            found.append(("call", part.name, part.arguments))
        elif isinstance(part, CallPart):
            kind, name, arguments = found.pop()
            assert (kind, part.number) == ("call", num_calls - 1)
            found.append((kind, name, arguments + part.arguments))
        else:
            assert part.text
            kind = "text" if isinstance(part, TextPart) else "thought"
            before = found.pop()[1] if found and found[-1][0] == kind else ""
            found.append((kind, before + part.text))
    return found


def read(style: str, pieces: Iterable[str], **options: Any) -> list[tuple[str, ...]]:
    parser = AnswerParser(STYLES[style], **{"tools": TOOLS, **options})
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined([*parts, *parser.finish()])


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", [F]),
        ("hermes", f"Sure.\n<tool_call>\n{CALL}\n</tool_call>", [("text", "Sure."), F]),
        ("hermes", f"<tool_call>{CALL}</tool_call>\n\nDone.", [F, ("text", "Done.")]),
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>\n" * 2, [F, F]),
        ("hermes", f"<tool_call>{CALL}\n{CALL}</tool_call>", [F, F]),
        ("hermes", f"<tool_call>{CALL}", [F]),
        ("hermes", f"<tool_call>{CALL[:-1]}</tool_call>", [F]),
        ("hermes", f"<tool_call>{CALL}}}</tool_call>", [F]),
        ("hermes", f"<tool_call>{CALL}</tool", [F]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [("call", "f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>',
         [("call", "f", "{}")]),
        ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', [("call", "f", "{}")]),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [F]),
        ("hermes", r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>', [F]),
        ("hermes", '<tool_call>{"id": 7, "name": "f", "arguments": {"a": 1}, "x": [{}]}'
         "</tool_call>",
         [F]),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": 1}'
         "}}</tool_call>", [F]),
        ("hermes", f"```json\n{CALL}\n```", [F]),
        ("hermes", f"So:\n{CALL}", [("text", "So:"), F]),
        ("smollm2", f"<tool_call>[{CALL}]</tool_call>", [F]),
        ("smollm2", f"<tool_call>[{CALL}, {CALL}]</tool_call>", [F, F]),
        ("llama3", LLAMA, [F]),
        ("llama3", f"<|python_tag|>{LLAMA}", [F]),
        ("llama3", f"{LLAMA}; {LLAMA}", [F, F]),
        ("llama3", f"Let me see.\n\n{LLAMA}", [("text", "Let me see."), F]),
        ("llama3", '{"type": "function", "name": "f", "parameters": {"a": 1}}', [F]),
        ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", [F, F]),
        ("gemma", LLAMA, [F]),
        ("gemma", f"[{LLAMA}, {LLAMA}]", [F, F]),
        ("gemma", f"So:\n```json\n{LLAMA}\n```\n", [("text", "So:"), F]),
        ("gemma", f"```tool_code\n{LLAMA}\n```", [F]),
        ("gemma", f"```\n{LLAMA}\n```\nGood?", [F, ("text", "Good?")]),
        ("generic", f"<tool_call>{CALL}</tool_call>", [F]),
        ("generic", f"<|python_tag|>{LLAMA}", [F]),
        ("generic", f"```json\n{LLAMA}\n```", [F]),
        ("generic", f"[TOOL_CALLS] [{CALL}]", [F]),
    ],
)  # fmt: skip
def test_calls_are_read_in_the_form_of_the_family(
    style: str, text: str, expected: list[tuple[str, ...]]
) -> None:
    assert read(style, [text]) == expected
    assert read(style, text) == expected


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", ""),
        ("hermes", " Hello. \n"),
        ("hermes", "<tool_call>"),
        ("hermes", "Say <tool_call> and </tool_call>."),
        ("hermes", "<tool_call>[</tool_call>"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {"a": "b"}}</tool_call> ok'),
        ("hermes", f'<tool_call>{{"name": "x", "arguments": {{"q": "<tool_call>{CALL[:0]}"}}}}'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": \'f\', "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "argu'),
        ("mistral", LLAMA),
        ("llama3", '{"name": "f"}'),
        ("llama3", '{"result": {"name": "f", "parameters": {}}}'),
        ("llama3", '{"name": "Bob", "age": 3}\n'),
        ("llama3", f"As in {LLAMA}."),
        ("llama3", "[a link](b) and {braces}\n{ and more"),
        ("llama3", "[TOOL_CALLS"),
        ("mistral", "[TOOL_CALLS] none"),
        ("gemma", "```python\nx = {}\n```\n"),
        ("gemma", "````\n``"),
        ("generic", "<|python_tag|>print(1)"),
    ],
)
def test_what_is_no_call_comes_out_as_it_is(style: str, text: str) -> None:
    expected = [("text", text)] if text else []

    assert read(style, [text]) == expected
    assert read(style, text) == expected


def test_a_call_that_is_quoted_by_another_is_not_run() -> None:
    quoted = json.dumps({"name": "x", "arguments": {"text": f"\n<tool_call>{CALL}</tool_call>"}})

    assert read("hermes", f"<tool_call>{quoted}</tool_call>") == [
        ("text", f"<tool_call>{quoted}</tool_call>")
    ]


def test_a_list_may_hold_calls_and_others() -> None:
    text = f'<tool_call>[{CALL}, {{"name": "x", "arguments": {{}}}}, {CALL}]</tool_call>'

    assert read("hermes", text) == [F, ("text", '{"name": "x", "arguments": {}}'), F]


@pytest.mark.parametrize(
    ("arguments", "rest"),
    [('{"a": oops}', "}\n</tool_call>"), ('{"a": "x', ""), ('{"a": 1', ""), ("{}", "\n")],
)
def test_arguments_that_have_begun_are_passed_on_as_they_are(arguments: str, rest: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}{rest}'

    assert read("hermes", text) == [("call", "f", arguments)]


def test_line_ends_in_a_string_are_escaped_as_json_wants_it() -> None:
    [(_, _, arguments)] = read("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\n\ty"}}')

    assert json.loads(arguments) == {"a": "x\n\ty"}


@pytest.mark.parametrize(
    "arguments",
    ['{"q": "x", "limit": 10}', '{"limit": 10, "q": "x"}', "{}", '{"a":{"b":[1,2]}}', '{"s":"}"}'],
)
def test_arguments_lose_and_gain_nothing(arguments: str) -> None:
    """B54: joined pieces are the model's text, to the byte."""
    for style in STYLES.values():
        text = style.write([{"name": "g", "arguments": 0}]).replace(" 0", arguments)

        assert read(style.name, text) == [("call", "g", arguments)]


@pytest.mark.parametrize(
    "value", ['a"b', "c\\d", "é", "世", "😀", "\u2028", "x\ny", "", "</tool_call>"]
)
def test_values_come_back_through_every_form(value: str) -> None:
    """B52: what is written as a call is read as the same values."""
    calls = [{"name": name, "arguments": {"v": value}} for name in ("f", "g", "f")]
    for style in STYLES.values():
        found = read(style.name, style.write(calls))

        assert [name for _, name, _ in found] == ["f", "g", "f"]
        assert [json.loads(arguments) for *_, arguments in found] == [{"v": value}] * 3


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f(a=1)", [F]),
        ("print(f(a=1))", [F]),
        ("[f(a=1), g()]", [F, ("call", "g", "{}")]),
        ("x = f(1)\ntools.g()", [F, ("call", "g", "{}")]),
        ("f('x', b={'k': [True, None, -1.5]})",
         [("call", "f", '{"a": "x", "b": {"k": [true, null, -1.5]}}')]),
        (LLAMA, [F]),
    ],
)  # fmt: skip
def test_python_in_a_fence_calls_too(code: str, expected: list[tuple[str, ...]]) -> None:
    for text in (f"```tool_code\n{code}\n```", f"```tool_code\n{code}"):
        assert read("gemma", [text]) == expected
        assert read("gemma", f"So:\n{text}") == [("text", "So:"), *expected]


@pytest.mark.parametrize(
    "code",
    [
        "h(a=1)", "f(a=x)", "f(a=1) + 1", "import os", "f(1, 2, 3)", "f(1, a=2)", "f(**{})",
        "f(a=1e999)", "f(a={1})", "f(a='\\ud800')", "f(a=__import__('os'))", "f(", "f()(1)",
        "f(a=" + "(" * 500, "f(a='" + "x" * 20_000 + "')", "if f(a=1): g()", "",
    ],
)  # fmt: skip
def test_code_that_does_more_than_call_is_text(code: str) -> None:
    text = f"```tool_code\n{code}\n```\nDone."

    assert read("gemma", [text]) == read("gemma", text) == [("text", text)]


def test_quoted_arguments_that_cannot_be_sent_are_no_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>'

    assert read("hermes", [text]) == [("text", text)]


def test_further_calls_are_dropped_beyond_a_limit() -> None:
    text = f"One.\n<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"

    assert read("hermes", text, max_calls=1) == [("text", "One."), F]


def test_a_marked_form_can_be_read_where_it_is_marked_only() -> None:
    text = f"{CALL}\n```json\n{CALL}\n```\n"
    parser = AnswerParser(STYLES["hermes"].only_marked(), tools=TOOLS)

    parts = [*parser.feed(text), *parser.feed(f"<tool_call>{CALL}</tool_call>"), *parser.finish()]

    assert joined(parts) == [("text", text.rstrip()), F]
    assert STYLES["llama3"].only_marked() is STYLES["llama3"]


def test_without_tools_calls_are_text() -> None:
    text = f"<tool_call>{CALL}</tool_call>"

    assert read("hermes", text, tools={}) == [("text", text)]


@pytest.mark.parametrize(
    ("text", "is_thinking", "expected"),
    [
        ("<think>\nhm\n</think>\n\nHi", False, [("thought", "hm"), ("text", "Hi")]),
        ("hm\n</think>\n\nHi", True, [("thought", "hm"), ("text", "Hi")]),
        ("<think>\nhm\n</think>Hi", True, [("thought", "hm"), ("text", "Hi")]),
        ("\n<think>a\n\nb </thin", False, [("thought", "a\n\nb </thin")]),
        ("<think>\n\n</think>\n\n", False, []),
        ("Hi <think>no</think>", False, [("text", "Hi <think>no</think>")]),
        ("<thi", False, [("text", "<thi")]),
        ("<thi", True, [("thought", "<thi")]),
        (f"<think><tool_call>{CALL}</tool_call></think><tool_call>{CALL}</tool_call>", False,
         [("thought", f"<tool_call>{CALL}</tool_call>"), F]),
    ],
)  # fmt: skip
def test_thoughts_are_told_apart(
    text: str, is_thinking: bool, expected: list[tuple[str, ...]]
) -> None:
    options = {"reasons": True, "is_thinking": is_thinking}

    assert read("hermes", [text], **options) == expected
    assert read("hermes", text, **options) == expected


_SHARDS = (
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "```json", "```tool_code",
    "f(1)", "```", "`",
    "\n",
    " ", " " * 70, "\n" * 30 + " " * 30, CALL, LLAMA,
    '{"name": "f", ', '"arguments": {', '"a"', ": ", '"x', "}", "]", "[", ",",
    "{", "1", '"name": "x"', "text", "<think>", "</think>", "<tool", "[TOOL", "\\", "null",
)  # fmt: skip


@given(
    style=st.sampled_from(sorted(STYLES)),
    shards=st.lists(st.sampled_from(_SHARDS), max_size=12),
    is_thinking=st.booleans(),
    data=st.data(),
)
def test_the_parts_do_not_depend_on_how_the_text_is_cut(
    style: str, shards: list[str], is_thinking: bool, data: st.DataObject
) -> None:
    text = "".join(shards)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = {"reasons": True, "is_thinking": is_thinking}

    assert read(style, pieces, **options) == read(style, [text], **options)
    assert read(style, text, **options) == read(style, [text], **options)


@given(st.lists(st.sampled_from(_SHARDS), max_size=12))
def test_without_a_call_no_character_is_lost(shards: list[str]) -> None:
    text = "".join(shards)
    for style in STYLES:
        assert "".join(part[1] for part in read(style, [text], tools={"other": ()})) == text


@pytest.mark.parametrize(
    ("source", "calls", "reasons"),
    [
        ("{{ '<tool_call>' }}", "hermes", False),
        ("{{ '<tool_call></think>' }}", "hermes", True),
        ("<|python_tag|>", "llama3", False),
        ("dictionary of argument name and its value", "llama3", False),
        ("[TOOL_CALLS]", "mistral", False),
        ("named SmolLM, trained by", "smollm2", False),
        ("<start_of_turn>", "gemma", False),
        ("{{ messages }}", "generic", False),
    ],
)
def test_the_template_tells_the_style(source: str, calls: str, reasons: bool) -> None:
    style = style_of_template(source)

    assert (style.calls.name, style.reasons) == (calls, reasons)


def test_white_space_without_end_is_text_soon() -> None:
    """Each piece must cost the same, however many came before it."""
    parser = AnswerParser(STYLES["generic"], tools={"f": ()}, reasons=True)

    said = [part for _ in range(100) for part in parser.feed(" \n")]

    assert sum(len(part.text) for part in said if isinstance(part, TextPart)) > 100
    assert joined([*said, *parser.finish()]) == [("text", " \n" * 100)]
