"""`tool_choice`, `strict` and what they ask of the engine."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.fakes_text import CHATML
from tests.server.asgi import Json, chat, client
from tests.server.fakes import FakeEngine, Served, served
from tests.server.test_tool_calls import QWEN, saying, tagged

from kokuban.core.errors import RequestError
from kokuban.core.request import Request
from kokuban.core.step import TokenEvent

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
BYTES = LLTokenizer("byte")
OSLO = '{"city": "Oslo"}'


def tool(name: str, **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **fields}}


TOOLS = [tool("f"), tool("g")]
NAMED = {"type": "function", "function": {"name": "g"}}


def allowed(mode: str, *names: str) -> Json:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def grammar_of(model: Served | None = None, **fields: Any) -> str | None:
    """The grammar that the engine is asked to follow."""
    model = model or saying("Hi")
    response = await chat(model, **{"tools": TOOLS, **fields})
    assert response.status_code == 200, response.text
    grammar = model.client.submitted[-1].params.grammar
    assert grammar is None or LLMatcher.validate_grammar(grammar) == ""
    return grammar


def matches(grammar: str | None, text: str) -> bool:
    assert grammar is not None
    matcher = LLMatcher(BYTES, grammar)
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("choice", [None, "auto", "none", allowed("auto", "f")])
async def test_a_free_choice_asks_for_no_grammar(choice: Any) -> None:
    assert await grammar_of(tool_choice=choice) is None


async def test_required_forces_at_least_one_call() -> None:
    grammar = await grammar_of(tool_choice="required")

    one, two = tagged("f", OSLO), tagged("g", OSLO)
    assert matches(grammar, one)
    assert matches(grammar, f"{one}\n{two}")
    assert not matches(grammar, "Hello")


async def test_required_without_parallel_calls_forces_one() -> None:
    grammar = await grammar_of(tool_choice="required", parallel_tool_calls=False)

    assert matches(grammar, tagged("f", OSLO))
    assert not matches(grammar, f"{tagged('f', OSLO)}\n{tagged('g', OSLO)}")


@pytest.mark.parametrize("choice", [NAMED, {"type": "function", "name": "g"}])
async def test_a_named_tool_is_called_once(choice: Json) -> None:
    grammar = await grammar_of(tool_choice=choice)

    assert matches(grammar, tagged("g", OSLO))
    assert not matches(grammar, tagged("f", OSLO))
    assert not matches(grammar, tagged("g", OSLO) + "\n" + tagged("g", OSLO))


async def test_allowed_tools_leave_the_prompt_as_it_was() -> None:
    model = saying(tagged("f", OSLO) + tagged("g", OSLO), template="{{ tools | tojson }}" + QWEN)
    whole = (await chat(model, tools=TOOLS)).json()
    some = (await chat(model, tools=TOOLS, tool_choice=allowed("auto", "g"))).json()
    grammar = await grammar_of(model, tool_choice=allowed("required", "g"))

    first, second, third = (request.prompt_token_ids for request in model.client.submitted)
    assert first == second == third
    assert [c["function"]["name"] for c in whole["choices"][0]["message"]["tool_calls"]] == [
        "f",
        "g",
    ]
    message = some["choices"][0]["message"]
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["g"]
    assert matches(grammar, tagged("g", OSLO))
    assert not matches(grammar, tagged("f", OSLO))


async def test_strict_tools_bind_the_calls_of_a_free_answer() -> None:
    grammar = await grammar_of(tools=[tool("f", strict=True), tool("g")])

    assert matches(grammar, "Hello")
    assert matches(grammar, "Well.\n" + tagged("f", OSLO))
    assert matches(grammar, tagged("g", '{"x": 1}'))
    assert not matches(grammar, tagged("f", '{"x": 1}'))


async def test_thoughts_stay_free() -> None:
    grammar = await grammar_of(tool_choice="required")
    opened = await grammar_of(
        saying("Hi", template=QWEN + "<think>", last=ord(">")), tool_choice="required"
    )
    plain = await grammar_of(
        saying("Hi", template="{# <tool_call> #}" + CHATML), tool_choice="required"
    )

    call = tagged("f", OSLO)
    assert matches(grammar, f"<think>hm</think>\n\n{call}")
    assert matches(opened, f"hm</think>\n\n{call}")
    assert not matches(opened, call)
    assert not matches(plain, f"<think>hm</think>\n\n{call}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "h"}}},
         "names the tool 'h', which is not offered; tools are f, g"),
        ({"tool_choice": allowed("auto", "f", "h")}, "names the tool 'h'"),
        ({"tool_choice": "any"}, "tool_choice is 'any'; known are 'none', 'auto'"),
        ({"tool_choice": {"type": "magic"}}, "is of type 'magic'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "function.name is missing"),
        ({"tool_choice": {}}, "function.name is missing"),
        ({"tool_choice": ""}, "tool_choice is ''; known are 'none', 'auto'"),
        ({"tool_choice": allowed("never", "f")}, "needs the mode 'auto' or 'required'"),
        ({"tool_choice": allowed("auto")}, "a list of at least one tool"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": 3}}, "needs the mode"),
        ({"tool_choice": "required", "tools": None}, "there are no tools; send tools"),
        ({"tool_choice": NAMED, "tools": []}, "there are no tools"),
    ],
)  # fmt: skip
async def test_a_choice_that_cannot_be_made_is_refused(fields: Json, message: str) -> None:
    response = await chat(saying("Hi"), **{"tools": TOOLS, **fields})

    error = response.json()["error"]
    assert response.status_code == 400
    assert message in error["message"]
    assert error["param"] == "tool_choice"


async def test_parameters_that_cannot_be_followed_name_their_tool() -> None:
    tools = [tool("f"), tool("find", parameters={"type": "array"})]

    refused = await chat(saying("Hi"), tools=tools, tool_choice="required")
    unbound = await chat(saying("Hi"), tools=tools)

    error = refused.json()["error"]
    assert refused.status_code == 400
    assert "the tool 'find'" in error["message"]
    assert error["param"] == "tools[1].function.parameters"
    assert unbound.status_code == 200


async def test_a_server_that_reads_no_calls_forces_none() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "p"}], "tools": TOOLS}
    async with client(saying(tagged("f", OSLO)), tool_parser="none") as http:
        forced = await http.post("/v1/chat/completions", json={**body, "tool_choice": "required"})
        free = await http.post("/v1/chat/completions", json=body)

    assert forced.status_code == 400
    assert "--tool-parser none" in forced.json()["error"]["message"]
    assert free.json()["choices"][0]["message"]["content"] == tagged("f", OSLO)


async def test_without_tools_a_free_choice_is_no_fault() -> None:
    """Some clients always send one."""
    response = await chat(served({10: 259}), tool_choice="auto")

    assert response.status_code == 200


async def test_parameters_that_cannot_be_compiled_name_their_tool() -> None:
    class Strict(FakeEngine):
        async def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
            raise RequestError("unbalanced", param="grammar")
            yield

    wrong = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    model = served(template=QWEN, engine=Strict())
    tools = [tool("f"), tool("find", parameters=wrong, strict=True)]

    response = await chat(model, tools=tools)

    error = response.json()["error"]
    assert response.status_code == 400
    assert "the tool 'find'" in error["message"]
    assert error["param"] == "tools[1].function.parameters"
