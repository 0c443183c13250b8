"""What the OpenAPI document says of bodies is what the server takes, and no more than that.

Each body goes both ways: to the schema of its route and to the server. What the document allows is
answered, what it does not allow is refused. The large run with random bodies is
`python -m benchmarks.conformance`.
"""

import json
from functools import cache
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from tests.server.asgi import ALL_MODULES, client
from tests.server.fakes import VOCAB, served

from kokuban.server.description import Served, describe

Json = dict[str, Any]

USER = {"role": "user", "content": "p"}
CHAT: Json = {"messages": [USER], "max_tokens": 2}
TEXT: Json = {"prompt": "p", "max_tokens": 2}
INPUT: Json = {"input": "p", "max_output_tokens": 2}
BASES: dict[str, Json] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": INPUT,
    "/v1/responses/input_tokens": INPUT,
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "p"},
    "/tokenize": {"prompt": "p"},
    "/detokenize": {"tokens": [97]},
}
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM_TOOL = {"type": "function", "name": "f"}
CLIENT_TOOL = {"name": "f", "input_schema": {"type": "object"}}
FORMAT = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
ANY_SCHEMA = {"type": "json_object", "schema": True}
NESTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def turns(*messages: Json) -> Json:
    return {"messages": [*messages, USER]}


def said(role: str, **fields: Any) -> Json:
    return turns({"role": role, **fields})


ALLOWED: list[tuple[str, Json]] = [
    *(
        ("/v1/chat/completions", fields)
        for fields in (
            {"model": "", "stop": ["a"] * 16, "stop_token_ids": [0, VOCAB - 1]},
            {"stop": "x" * 1024, "logit_bias": {"0": -100, "511": 100}},
            {"response_format": {"type": "text"}, "regex": "a"},
            {"response_format": None, "guided_choice": ["a", "b"]},
            {"response_format": NESTED},
            {"response_format": FORMAT},
            {"response_format": ANY_SCHEMA},
            {"structured_outputs": {"choice": ["a"], "regex": None, "other": False}},
            {"structured_outputs": {"json_object": True}},
            {"guided_json": '{"type": "object"}'},
            {"json_schema": True},
            {"grammar": 'start: "a"'},
            {"logprobs": True, "top_logprobs": 2},
            {"stream": True, "stream_options": {"include_usage": True}},
            {"tools": [TOOL], "tool_choice": "auto"},
            {"tools": [], "tool_choice": "none"},
            {"modalities": ["text"]},
            {"store": True, "metadata": {"a": "b"}, "service_tier": None},
            {"chat_template_kwargs": {"enable_thinking": False, "k2_a": [1]}},
            said("assistant", tool_calls=[CALL]),
            said("assistant", content=None, reasoning_content="t"),
            said("user", content=["a", {"type": "input_text", "text": "b"}]),
            said("assistant", content=[{"type": "refusal", "refusal": "no"}]),
        )
    ),
    *(
        ("/v1/completions", fields)
        for fields in (
            {"prompt": ["a", "b"]},
            {"prompt": [1, 2]},
            {"prompt": [[1], [2, 3]]},
            {"guided_grammar": 'start: "a"'},
            {"stream": True, "stream_options": {}},
        )
    ),
    *(
        ("/v1/responses", fields)
        for fields in (
            {"input": [USER, {"type": "message", "role": "assistant", "content": "a"}]},
            {"text": {"format": FORMAT}},
            {"tools": [ITEM_TOOL, {"type": "web_search"}], "tool_choice": "auto"},
            {"background": True, "store": None},
            {"stop": ["a"], "top_k": -1, "priority": 1},
        )
    ),
    *(
        ("/v1/messages", fields)
        for fields in (
            said("assistant", content=[{"type": "text", "text": "a"}]),
            turns({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}),
            {"tools": [CLIENT_TOOL], "tool_choice": {"type": "auto"}},
            {"system": [{"type": "text", "text": "a"}]},
            {"stop_sequences": ["a"] * 16, "container": "", "mcp_servers": []},
        )
    ),
    ("/v1/responses/input_tokens", {"temperature": 0, "stop": ["a"]}),
    ("/v1/messages/count_tokens", {"temperature": 1, "stop_sequences": ["a"]}),
    ("/v1/embeddings", {"input": ["a", "b"], "truncate_prompt_tokens": -1}),
    ("/v1/embeddings", {"input": [[1], [2]]}),
    ("/tokenize", said("user", content="a")),
    ("/detokenize", {"tokens": [0, VOCAB - 1]}),
]

REFUSED: list[tuple[str, Json]] = [
    *(
        ("/v1/chat/completions", fields)
        for fields in (
            {"messages": []},
            {"stop": ""},
            {"stop": ["a"] * 17},
            {"stop": ["a", ""]},
            {"stop": "x" * 1025},
            {"stop_token_ids": [-1]},
            {"stop_token_ids": [VOCAB]},
            {"logit_bias": {"a": 1}},
            {"logit_bias": {"1": 101}},
            {"temperature": 2.5},
            {"top_p": 0},
            {"regex": "a", "choice": ["a"]},
            {"response_format": NESTED, "grammar": 'start: "a"'},
            {"response_format": {"type": "xml"}},
            {"response_format": {"type": "json_schema"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            {"structured_outputs": {}},
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            {"structured_outputs": {"other": 1, "regex": "a"}},
            {"guided_json": False},
            {"guided_regex": ""},
            {"guided_choice": []},
            {"grammar": "  "},
            {"top_logprobs": 2},
            {"logprobs": False, "top_logprobs": 2},
            {"stream_options": {}},
            {"tool_choice": "required"},
            {"tool_choice": "maybe", "tools": [TOOL]},
            {"tool_choice": {"type": "function"}, "tools": [TOOL]},
            {"tools": [TOOL] * 257},
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            {"modalities": ["text", "audio"]},
            {"store": "yes"},
            {"chat_template_kwargs": {"_a": 1}},
            {"chat_template_kwargs": {"\u00e9": 1}},
            said("user"),
            said("user", content=None),
            said("user", content=[]),
            said("assistant", tool_calls=[]),
            said("user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
            said("user", content=[{"type": "text"}]),
        )
    ),
    *(
        ("/v1/completions", fields)
        for fields in (
            {"prompt": []},
            {"prompt": [[]]},
            {"prompt": [1, "a"]},
            {"prompt": [VOCAB]},
            {"prompt": None},
            {"best_of": 21},
            {"stream_options": {}},
        )
    ),
    *(
        ("/v1/responses", fields)
        for fields in (
            {"input": None},
            {"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]},
            {"input": [{"type": "image_generation_call", "id": "x"}]},
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            {"tools": [{"type": "function"}]},
            {"tool_choice": "required"},
            {"background": True, "store": False},
            {"temperature": -1},
            {"min_p": 1.5},
            {"structured_outputs": {}},
        )
    ),
    *(
        ("/v1/messages", fields)
        for fields in (
            said("user", content=""),
            said("user", content=[{"type": "image"}]),
            {"system": [{"type": "thinking", "thinking": "a"}]},
            said("user", content=[{"type": "tool_result"}]),
            said("system", content=[{"type": "thinking", "thinking": "a"}]),
            said("assistant", content=[{"type": "tool_use", "id": "c"}]),
            {"tools": [{"name": "f"}]},
            {"tools": [CLIENT_TOOL], "tool_choice": {"type": "tool"}},
            {"tool_choice": {"type": "any"}},
            {"stop_sequences": ["a"] * 17},
            {"container": "c"},
            {"top_p": 1.5},
            {"max_tokens": 0},
        )
    ),
    ("/v1/responses/input_tokens", {"temperature": -1}),
    ("/v1/responses/input_tokens", {"frequency_penalty": -3}),
    ("/v1/responses/input_tokens", {"structured_outputs": {}}),
    ("/v1/messages/count_tokens", {"temperature": 3}),
    ("/v1/messages/count_tokens", {"stop_sequences": ["a"] * 17}),
    ("/v1/embeddings", {"input": ""}),
    ("/v1/embeddings", {"input": ["a", ""]}),
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"truncate_prompt_tokens": 0}),
    ("/tokenize", {"messages": []}),
    ("/detokenize", {"tokens": [VOCAB]}),
]


def named(cases: list[tuple[str, Json]]) -> list[Any]:
    return [
        pytest.param(path, fields, id=f"{path}-{json.dumps(fields)[:60]}") for path, fields in cases
    ]


@cache
def document() -> Json:
    routes = [route for module in ALL_MODULES for route in module.router.routes]
    made: Json = json.loads(json.dumps(describe(routes, Served(("m", "alias"), VOCAB))))
    return made


@cache
def validator(path: str) -> Draft202012Validator:
    [content] = document()["paths"][path]["post"]["requestBody"]["content"].values()
    return Draft202012Validator({**content["schema"], "components": document()["components"]})


async def answer(path: str, body: Json) -> httpx.Response:
    async with client(served()) as http:
        return await http.post(path, json=body)


@pytest.mark.parametrize(("path", "fields"), named(ALLOWED))
async def test_what_the_document_allows_is_answered(path: str, fields: Json) -> None:
    body = BASES[path] | fields

    problems = [error.message[:200] for error in validator(path).iter_errors(body)]
    response = await answer(path, body)

    assert not problems
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "fields"), named(REFUSED))
async def test_what_the_document_does_not_allow_is_refused(path: str, fields: Json) -> None:
    body = BASES[path] | fields

    response = await answer(path, body)

    assert not validator(path).is_valid(body)
    assert response.status_code == 400, response.text


async def test_the_served_names_are_examples_and_the_vocabulary_bounds_token_ids() -> None:
    async with client(served(), model_aliases=("alias",)) as http:
        schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]

    bodies = ("ChatRequest", "CompletionRequest", "MessagesRequest", "ResponseRequest",
              "EmbeddingRequest", "TokenizeText", "DetokenizeRequest")  # fmt: skip
    for name in bodies:
        assert schemas[name]["properties"]["model"]["examples"] == ["m", "alias"]
    ids = schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]
    assert (ids["minimum"], ids["maximum"]) == (0, VOCAB - 1)
