"""What clients say of the form of an answer, and what the engine is told of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import jsonschema
import pytest
from tests.server.asgi import chat, client, client_of, complete
from tests.server.fakes import FakeEngine, served
from tools.bugbank_models import write_attn

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.request import Request
from kokuban.core.step import TokenEvent
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine
from kokuban.server.app import create_app
from kokuban.server.output_format import FORM_FIELDS
from kokuban.server.settings import ServerSettings
from kokuban.text.grammar import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
AS_SCHEMA = json_schema_grammar(SCHEMA)
LARK = 'start: "yes" | "no"'

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "json_object"}}, json_object_grammar()),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, AS_SCHEMA),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            AS_SCHEMA,
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA, "name": "x"}},
            AS_SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, AS_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, AS_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, json_object_grammar()),
        ({"structured_outputs": {"regex": "a+"}}, regex_grammar("a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, choice_grammar(["a", "b"])),
        ({"structured_outputs": {"grammar": LARK, "regex": None}}, lark_grammar(LARK)),
        ({"guided_json": SCHEMA}, AS_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, AS_SCHEMA),
        ({"guided_regex": "a+"}, regex_grammar("a+")),
        ({"guided_choice": ["a", "b"]}, choice_grammar(["a", "b"])),
        ({"guided_grammar": LARK}, lark_grammar(LARK)),
        ({"json_schema": SCHEMA}, AS_SCHEMA),
        ({"grammar": LARK, "response_format": {"type": "text"}}, lark_grammar(LARK)),
        ({"regex": "a+"}, regex_grammar("a+")),
        ({"choice": ["a"]}, choice_grammar(["a"])),
    ],
)
async def test_every_way_to_ask_becomes_one_grammar(fields: Json, grammar: str | None) -> None:
    engine = FakeEngine()

    for ask in (chat, complete):
        response = await ask(served(engine=engine), max_tokens=1, **fields)
        assert response.status_code == 200, response.text

    assert [each.params.grammar for each in engine.submitted] == [grammar, grammar]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"response_format": {"type": "xml"}}, "the type 'xml' is unknown"),
        ({"response_format": {}}, "the type 'None' is unknown"),
        ({"response_format": {"type": "json_schema"}}, "needs the schema under 'schema'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "the schema"),
        ({"structured_outputs": {}}, "holds 0 constraints"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "holds 2 constraints"),
        ({"structured_outputs": {"structural_tag": "x"}}, "'structural_tag', which is not"),
        ({"structured_outputs": {"json_object": 1}}, "must be true"),
        ({"structured_outputs": {"choice": []}}, "is empty"),
        ({"structured_outputs": {"choice": [1]}}, "must be a list of texts"),
        ({"guided_json": "{"}, "is no JSON"),
        ({"guided_json": "[" * 100_000}, "is no JSON"),
        ({"guided_json": '"a"'}, "a JSON schema is an object"),
        ({"guided_json": "null"}, "a JSON schema is an object"),
        ({"json_schema": False}, "no JSON value is valid"),
        ({"guided_regex": ""}, "must be a regular expression"),
        ({"guided_grammar": " "}, "must be a grammar in Lark or GBNF"),
        ({"grammar": "root ::= x"}, "Rule 'x' not found"),
        ({"grammar": "root ::= " + "(" * 10_000}, "is neither Lark"),
        ({"grammar": "x ::= y" * 20_000}, "the limit of GBNF is 65536"),
        ({"regex": "a", "guided_choice": ["a"]}, "both say what the answer must look like"),
    ],
)
async def test_what_cannot_be_followed_is_refused_by_name(fields: Json, problem: str) -> None:
    """B10, B46: 400 that names the field, and nothing is generated."""
    engine = FakeEngine()

    for ask in (chat, complete):
        response = await ask(served(engine=engine), **fields)

        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert problem in error["message"]
        assert error["param"] in fields

    assert engine.submitted == []


def test_every_field_is_one_of_the_body() -> None:
    from kokuban.server.openai_models import SamplingFields

    assert set(FORM_FIELDS) <= set(SamplingFields.model_fields)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_attn(tmp_path_factory.mktemp("attn"), seed=3, max_positions=2048)
    runtime = RuntimeConfig(kv_memory_bytes=2**24, threads=1)
    engine = build_engine(path, scheduler=SchedulerConfig(), runtime=runtime, served_name="m")
    yield engine
    engine.close()


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """A real engine behind the application."""
    async with client_of(create_app(engine, ServerSettings())) as http:
        yield http


async def ask(http: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "p"}], "max_tokens": 200}
    return await http.post("/v1/chat/completions", json={**body, "seed": 1, **fields})


def schema_format(schema: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "pattern": r"^\d{3}-\w+$", "maxLength": 9},
                "u": {"type": "string", "pattern": r"^(https:\/\/)?x\.y\/\S*$", "maxLength": 20},
                "k": {"type": "string", "pattern": r"\S", "maxLength": 4},
            },
            "required": ["id", "u", "k"],
            "additionalProperties": False,
        },
        {"type": "array", "items": [{"type": "integer"}, {"type": "boolean"}], "maxItems": 2},
    ],
)
async def test_an_answer_is_valid_whole_and_streamed(http: httpx.AsyncClient, schema: Any) -> None:
    """B09: shorthand in patterns; B46: tuples of draft 7."""
    whole = await ask(http, response_format=schema_format(schema))
    text = whole.json()["choices"][0]["message"]["content"]
    streamed = await ask(http, response_format=schema_format(schema), stream=True)

    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert whole.json()["choices"][0]["finish_reason"] == "stop"
    assert "".join(deltas) == text
    draft = {**schema, "prefixItems": schema["items"]} if "items" in schema else schema
    jsonschema.Draft7Validator(draft).validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"properties": {"bar": "bar"}}, "#/properties/bar"),
        ({"type": "objekt"}, '#/type: "objekt" is no type of JSON'),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"required": "a"}, "required"),
        ({"$ref": "#/$defs/none"}, "$ref"),
        ({"$ref": "http://x/y"}, "$ref"),
        ({"type": "string", "pattern": "(["}, "pattern"),
        ({"type": "string", "pattern": "(" * 5000}, "pattern"),
        ({"not": {"type": "string"}}, "the keyword 'not'"),
        (None, "'schema'"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_that_cannot_be_followed_is_a_400_that_says_why(
    http: httpx.AsyncClient, schema: Any, problem: str, stream: bool
) -> None:
    """B10, B46, B48: before the first token; the next request is served."""
    response = await ask(http, response_format=schema_format(schema), stream=stream)

    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "response_format"
    assert problem in error["message"]
    assert (await ask(http, max_tokens=1)).status_code == 200


async def test_schemas_are_deep_up_to_a_limit(http: httpx.AsyncClient) -> None:
    """B48: depth 50 works, depth 5,000 is a 400."""
    schema: Json = {"type": "integer"}
    for _ in range(45):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    deep = '{"properties":{"a":' * 5000 + "true" + "}}" * 5000

    assert (await ask(http, response_format=schema_format(schema))).status_code == 200
    assert (await ask(http, guided_json=deep)).status_code == 400


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"s": {"type": "string", "maxLength": 100_000}}},
        {"type": "array", "items": {"type": "integer"}, "minItems": 5000},
    ],
)
async def test_large_bounds_are_taken_or_refused_by_name(
    http: httpx.AsyncClient, schema: Any
) -> None:
    """B51: counters are not unrolled."""
    response = await ask(http, response_format=schema_format(schema), max_tokens=3)

    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "regex",
    [r"((a{1,300}){1,300}){1,300}", r"(x+x+)+y{1,30000}", "|".join(f"w{i}" for i in range(2000))],
)
async def test_a_hostile_regex_gets_an_answer(http: httpx.AsyncClient, regex: str) -> None:
    """B50: within the limit of time, whatever the answer is."""
    response = await ask(http, guided_regex=regex, max_tokens=3)

    assert response.status_code in (200, 400), response.text


async def test_a_grammar_that_turns_out_to_be_too_much_is_the_clients_fault(
    http: httpx.AsyncClient,
) -> None:
    """B50: also where that is seen only after some tokens."""
    words = " | ".join(f'"w{i}"' for i in range(10_001))

    response = await ask(http, grammar=f"start: {words}")

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "grammar"
    assert "cannot be held to its grammar" in response.json()["error"]["message"]


class LateCompiler(FakeEngine):
    """Finds out after a moment that a grammar cannot be built."""

    async def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        await asyncio.sleep(0.05)
        raise RequestError("the grammar cannot be built: it is wrong", param="grammar")
        yield


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_begins_when_its_grammar_is_known_to_be_good(path: str) -> None:
    """Also where that takes longer than headers wait for a first token."""
    body = {"model": "m", "regex": "a+", "stream": True, "prompt": "p"}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    async with client(served(engine=LateCompiler()), commit_after_s=0) as http:
        answer = await http.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "regex"


async def test_a_grammar_in_gbnf_is_followed(http: httpx.AsyncClient) -> None:
    response = await ask(http, grammar='root ::= "yes" | "no"')

    assert response.json()["choices"][0]["message"]["content"] in ("yes", "no")


async def test_completions_take_a_form_for_every_prompt(http: httpx.AsyncClient) -> None:
    body = {"model": "m", "prompt": ["a", "b"], "n": 2, "max_tokens": 20, "choice": ["x", "yy"]}

    response = await http.post("/v1/completions", json=body)

    assert {each["text"] for each in response.json()["choices"]} <= {"x", "yy"}
    assert {each["finish_reason"] for each in response.json()["choices"]} == {"stop"}
