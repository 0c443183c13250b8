"""What the server says of itself in /openapi.json, and whether its answers are as it says.

The large run with random requests is `python -m benchmarks.conformance`.
"""

import json
import re
from functools import cache
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from tests.server.asgi import ALL_MODULES, client
from tests.server.fakes import served

from kokuban.server.description import describe

STREAM = "text/event-stream"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "p"}], "max_tokens": 4}
TEXT = {"model": "m", "prompt": "p", "max_tokens": 4}
INPUT = {"model": "m", "input": "p", "max_output_tokens": 4}
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "two choices with logprobs": (
        "/v1/chat/completions",
        CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "temperature": 1},
    ),
    "completion": ("/v1/completions", TEXT | {"logprobs": 2, "stop": ["!"]}),
    "response": ("/v1/responses", INPUT),
    "response with logprobs": (
        "/v1/responses",
        INPUT | {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    ),
    "message": ("/v1/messages", CHAT),
    "embedding": ("/v1/embeddings", {"model": "m", "input": ["p", "pp"]}),
    "text to ids": ("/tokenize", {"prompt": "p", "return_token_strs": True}),
    "messages to ids": ("/tokenize", {"messages": CHAT["messages"]}),
    "content to ids": ("/tokenize", {"content": "é", "with_pieces": True}),
    "messages to text": ("/apply-template", {"messages": CHAT["messages"]}),
    "ids to text": ("/detokenize", {"tokens": [97, 98]}),
    "count": ("/v1/messages/count_tokens", CHAT),
    "count of input": ("/v1/responses/input_tokens", INPUT),
}
BAD: dict[str, tuple[str, bytes]] = {
    "no JSON": ("/v1/chat/completions", b"{"),
    "no prompt": ("/v1/completions", b'{"model":"m"}'),
    "another model": ("/v1/embeddings", b'{"model":"x","input":"p"}'),
    "a wrong type": ("/v1/responses", b'{"model":"m","input":7}'),
    "no limit": ("/v1/messages", b'{"model":"m","messages":[{"role":"user","content":"p"}]}'),
}
PATHS = (
    "/health", "/ready", "/version", "/stats", "/v1/models", "/v1/models/m", "/v1/models/x",
    "/v1/responses/none", "/v1/responses/none/input_items", "/v1/sessions/none",
    "/v1/explain/none",
)  # fmt: skip


@cache
def document() -> dict[str, Any]:
    made = describe([route for module in ALL_MODULES for route in module.router.routes])
    loaded: dict[str, Any] = json.loads(json.dumps(made))
    return loaded


def operations() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
    ]


def assert_as_described(response: httpx.Response) -> None:
    """Fails unless the document has this status with this type, and its schema takes the body."""
    status, schema = response.status_code, _schema_of(response)
    is_stream = response.headers["content-type"].startswith(STREAM)
    datas = _data_of(response.content) if is_stream else [response.content]
    assert datas, status
    for data in datas:
        problems = list(Draft202012Validator(schema).iter_errors(json.loads(data)))
        assert not problems, f"{problems[0].json_path}: {problems[0].message}"


def _schema_of(response: httpx.Response) -> dict[str, Any]:
    path = response.request.url.path
    method = response.request.method.lower()
    [operation] = [
        methods[method]
        for known, methods in document()["paths"].items()
        if method in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path)
    ]
    kind = response.headers["content-type"].partition(";")[0]
    content = operation["responses"][str(response.status_code)]["content"]
    return {**content[kind]["schema"], "components": document()["components"]}


def _data_of(body: bytes) -> list[bytes]:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [line for line in lines if line != b"[DONE]"]


def test_every_reference_has_something_that_it_names() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document())))

    assert named == set(document()["components"]["schemas"])


def test_every_operation_is_called_differently() -> None:
    names = [operation["operationId"] for _, operation in operations()]

    assert len(names) == len(set(names))


def test_every_parameter_of_a_path_is_told() -> None:
    for key, operation in operations():
        told = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert told == set(re.findall(r"\{(\w+)\}", key)), key


def test_every_schema_is_a_json_schema() -> None:
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_errors_have_the_envelope_of_the_paths_api() -> None:
    found = {
        key.partition(" ")[2]: answer["content"]["application/json"]["schema"]["$ref"]
        for key, operation in operations()
        for status, answer in operation["responses"].items()
        if status != "200"
    }

    anthropic = {path for path, name in found.items() if name.endswith("/MessagesError")}
    assert anthropic == {"/v1/messages", "/v1/messages/count_tokens"}
    assert found.keys() - anthropic == {
        path for path, name in found.items() if name.endswith("/ErrorEnvelope")
    }


def test_statuses_follow_from_what_a_route_takes() -> None:
    told = {key: set(operation["responses"]) for key, operation in operations()}

    assert told["get /health"] == {"200", "403", "431", "500", "503"}
    assert told["get /v1/models"] == told["get /health"] | {"401", "429"}
    assert told["get /v1/models/{model}"] == told["get /v1/models"] | {"400", "404"}
    assert told["post /v1/completions"] == {
        "200", "400", "401", "403", "404", "408", "413", "415", "429", "431", "500", "503",
    }  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
async def test_a_success_is_as_described(name: str) -> None:
    path, body = GOOD[name]
    async with client(served()) as http:
        response = await http.post(path, json=body)

    assert response.status_code == 200, response.text
    assert_as_described(response)


@pytest.mark.parametrize(
    "name", ["chat", "two choices with logprobs", "completion", "response", "message"]
)
async def test_every_event_of_a_stream_is_as_described(name: str) -> None:
    path, body = GOOD[name]
    async with client(served()) as http:
        response = await http.post(path, json=body | {"stream": True})

    assert response.headers["content-type"].startswith(STREAM)
    assert_as_described(response)


@pytest.mark.parametrize("name", BAD)
async def test_an_error_is_as_described(name: str) -> None:
    path, body = BAD[name]
    async with client(served()) as http:
        headers = {"content-type": "application/json"}
        response = await http.post(path, content=body, headers=headers)

    assert response.status_code in (400, 404)
    assert_as_described(response)


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_read_is_as_described(path: str) -> None:
    async with client(served()) as http:
        assert_as_described(await http.get(path))


async def test_a_kept_response_is_as_described_in_each_of_its_forms() -> None:
    async with client(served()) as http:
        body = INPUT | {"background": True, "stream": True}
        created = await http.post("/v1/responses", json=body)
        path = f"/v1/responses/{json.loads(_data_of(created.content)[0])['response']['id']}"
        for answer in (
            created,
            await http.get(path),
            await http.get(path, params={"stream": "true"}),
            await http.get(f"{path}/input_items"),
            await http.post(f"{path}/cancel"),
            await http.delete(path),
        ):
            assert answer.status_code == 200, answer.text
            assert_as_described(answer)
