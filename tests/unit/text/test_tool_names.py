"""The names of called tools, in every form that the model families write."""

import time

import pytest

from kokuban.text.tool_names import called_names

OFFERED = ("weather", "search.web", "get-time", "naïve", "read")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>', "weather"),
        ('{"arguments": {}, "name": "weather"}', "weather"),
        ('<tool_call>[{"name": "read", "arguments": {}}, {"name": "weather", "arguments": {}}]'
         "</tool_call>", "read weather"),
        ('{"name": "search.web", "parameters": {"q": "x"}}', "search.web"),
        ('Sure.\n<tool_call>{"name" :\n"get-time","arguments":{}}</tool_call>'
         '<tool_call>{"name":"get-time","arguments":{}}</tool_call>', "get-time"),
        ('{"name": "na\\u00efve", "parameters": {}}', "naïve"),
        ("<tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n", "weather"),
        ('```tool_code\nprint(weather(city="Oslo"), read ("x"))\n```', "read weather"),
        ("```tool_code\nsearch.web('x')", "search.web"),
        ('[{"type": "function", "function": {"name": "read", "arguments": "{}"}}]', "read"),
    ],
)  # fmt: skip
def test_a_call_is_found_in_every_form(text: str, names: str) -> None:
    assert called_names(text, OFFERED) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The weather in Oslo is fine; weather(it) is.",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "weather"}',
        "```tool_code\nmy_weather(1) weather.x(2) -weather(3)\n```\nweather(4)",
        "```python\nweather(1)\n```",
        '<think>{"name": "weather", "arguments": {}}</think>It is fine.',
        '{"name": "weather, "arguments": {}',
        '{"name": "\\uZZZZ", "arguments": {}}',
    ],
)
def test_what_is_no_call_of_an_offered_tool_is_none(text: str) -> None:
    assert called_names(text, OFFERED) == ()


@pytest.mark.parametrize(
    "unit",
    [
        '"name":', '"name"' + " " * 9, '"name":"', '"arguments":"name":"\\', "<function=",
        "a", "a.", "a ", "```tool_code", "```tool_code\na", " ", '"', "\\", "</think>", "(",
    ],
)  # fmt: skip
def test_hostile_text_takes_a_time_that_grows_with_its_length_only(unit: str) -> None:
    """A search that went back over the text would take minutes for these."""
    size = 400_000
    for head in ("", '"arguments": "name":', "```tool_code\n"):
        started = time.process_time()
        assert called_names(head + unit * (size // len(unit)), OFFERED) == ()
        assert time.process_time() - started < 2.0
