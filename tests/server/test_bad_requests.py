"""What is wrong with a request is said in the one envelope, and the server goes on."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.asgi import Json, client, client_of, make_app
from tests.server.fakes import served

from kokuban.server import body

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "p"}]
JSON = {"content-type": "application/json"}


def assert_envelope(body: Json) -> Json:
    assert set(body) == {"error"}
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["type"], str)
    return error


async def refused(path: str, raw: bytes, status: int = 400, **headers: str) -> Json:
    """Send a body that must be refused; then a good one, which must not."""
    model = served()
    async with client(model) as http:
        response = await http.post(path, content=raw, headers={**JSON, **headers})
        good = await http.post(COMPLETIONS, json={"model": "m", "prompt": "p", "max_tokens": 1})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.headers["x-request-id"]) == 24
    assert good.status_code == 200
    assert len(model.client.submitted) == 1
    return assert_envelope(response.json())


def chat_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def completion_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "p", **fields}).encode()


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"", b"\xff\xfe{}", b'{"a":1,}', b"[" * 9999])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_a_body_that_is_no_json_object_is_refused(path: str, raw: bytes) -> None:
    """Keeps B84 out: docs/bugbank.md."""
    error = await refused(path, raw)

    assert "the body" in error["message"]


NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "true", '"1"'])
@pytest.mark.parametrize("name", NUMBERS)
async def test_what_is_no_number_is_refused_by_name(name: str, value: str) -> None:
    """Keeps B12 out: docs/bugbank.md."""
    raw = b'{"model":"m","prompt":"p","%s":%s}' % (name.encode(), value.encode())

    error = await refused(COMPLETIONS, raw)

    assert error["param"] == name


@pytest.mark.parametrize("value", [b"NaN", b"1e999", b'"x"', b"1000", b"true"])
async def test_a_bias_that_is_no_number_in_range_is_refused(value: bytes) -> None:
    """Keeps B12 and B27 out: docs/bugbank.md."""
    raw = b'{"model":"m","prompt":"p","logit_bias":{"97":%s}}' % value

    assert (await refused(COMPLETIONS, raw))["param"] == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 10**20}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": True}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**20}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**20}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"priority": 10**20}, "priority"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["a", 3]}, "stop[1]"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop_token_ids": [512]}, "stop_token_ids"),
        ({"logit_bias": {"999999": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 5}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"guided_json": "{"}, "guided_json"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_value_out_of_range_is_refused_by_name(path: str, fields: Json, param: str) -> None:
    """Keeps B27, B28 and B35 out: docs/bugbank.md."""
    raw = chat_body(**fields) if path == CHAT else completion_body(**fields)

    error = await refused(path, raw)

    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields", [{"seed": 2**63 - 1}, {"seed": 0}, {"seed": -1}, {"stop": []}])
async def test_values_at_the_edge_are_taken(fields: Json) -> None:
    """Keeps B28 out: docs/bugbank.md."""
    async with client(served()) as http:
        response = await http.post(COMPLETIONS, content=completion_body(**fields), headers=JSON)

    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
            "messages[0].content[0].type",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"continue_final_message": True}, "continue_final_message"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"echo": True}, "echo"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_cannot_be_served_is_refused_by_name(
    fields: Json, param: str, stream: bool
) -> None:
    """Keeps B22 and B86 out: docs/bugbank.md."""
    error = await refused(CHAT, chat_body(**fields, stream=stream))

    assert error["param"] == param


@pytest.mark.parametrize(
    "prompt",
    [
        "", [""], [], [[]], ["a", ""], [[97], []], [512], [-1], [2**40], [1.5], [True],
        [[1], [512]], ["a", 1], None, {}, 3,
    ],
)  # fmt: skip
async def test_a_prompt_that_holds_nothing_or_unknown_ids_is_refused(prompt: Any) -> None:
    """Keeps B26 and B36 out: docs/bugbank.md."""
    error = await refused(COMPLETIONS, completion_body(prompt=prompt))

    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 21}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
async def test_a_completion_that_cannot_be_served_is_refused_by_name(
    fields: Json, param: str
) -> None:
    assert (await refused(COMPLETIONS, completion_body(**fields)))["param"] == param


@pytest.mark.parametrize("tokens", [[512], [-1], [2**40], [1.5], [True], "x", None])
async def test_only_ids_of_the_model_can_be_read_back(tokens: Any) -> None:
    """Keeps B26 out: docs/bugbank.md."""
    raw = json.dumps({"tokens": tokens}).encode()

    error = await refused("/detokenize", raw)

    assert error["param"].startswith("tokens")


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        (CHAT, rb'{"model":"m","messages":[{"role":"user","content":"x \ud83d y"}]}'),
        (CHAT, rb'{"model":"m","messages":[{"role":"user","content":"x"}],"stop":"\ud83d"}'),
        (CHAT, rb'{"model":"m","messages":[{"role":"user","content":"x"}],"user":"\ude00"}'),
        (CHAT, rb'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":'
               rb'"function","function":{"name":"f","description":"\ud83d"}}]}'),
        (COMPLETIONS, rb'{"model":"m","prompt":"\ud83d"}'),
        ("/tokenize", rb'{"prompt":"\ud83d"}'),
        ("/tokenize", rb'{"messages":[{"role":"user","content":"\ud83d"}]}'),
    ],
)  # fmt: skip
async def test_half_an_emoji_is_refused_wherever_it_stands(path: str, raw: bytes) -> None:
    """Keeps B24 out: docs/bugbank.md."""
    await refused(path, raw)


async def test_a_whole_escaped_emoji_is_text() -> None:
    """Keeps B24 out: docs/bugbank.md."""
    model = served()
    async with client(model) as http:
        raw = rb'{"model":"m","prompt":"\ud83d\ude00"}'
        response = await http.post(COMPLETIONS, content=raw, headers=JSON)

    assert response.status_code == 200
    assert model.client.submitted[0].prompt_token_ids == (0xF0, 0x9F, 0x98, 0x80)


PICKY = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_template_refuses_is_the_clients_fault(stream: bool) -> None:
    """Keeps B23 out: docs/bugbank.md."""
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    async with client(served(template=PICKY)) as http:
        raw = chat_body(messages=messages, stream=stream)
        response = await http.post(CHAT, content=raw, headers=JSON)

    assert response.status_code == 400
    error = assert_envelope(response.json())
    assert error["param"] == "messages"
    assert "no system here" in error["message"]


async def test_arguments_of_an_earlier_call_must_be_json() -> None:
    function = {"name": "f", "arguments": "not json"}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]

    error = await refused(CHAT, chat_body(messages=messages))

    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


async def test_another_model_is_not_found_and_the_error_says_which_there_is() -> None:
    """Keeps B84 out: docs/bugbank.md."""
    unknown = await refused(CHAT, chat_body(model="nope"), status=404)

    assert (unknown["param"], unknown["code"]) == ("model", "model_not_found")
    assert "'nope' is not served here; this server has 'm'" in unknown["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_only_json_is_taken(kind: str) -> None:
    """Keeps B84 out: docs/bugbank.md."""
    error = await refused(CHAT, chat_body(), status=415, **{"content-type": kind})

    assert "Content-Type: application/json" in error["message"]


async def test_a_body_over_the_limit_is_refused_whether_announced_or_not() -> None:
    """Keeps B84 out: docs/bugbank.md."""

    async def pieces() -> Any:
        for _ in range(30):
            yield b"x" * 100

    app = make_app(served(), max_body_bytes=1000)
    async with client_of(app) as http:
        announced = await http.post(CHAT, content=b"x" * 1001, headers=JSON)
        streamed = await http.post(CHAT, content=pieces(), headers=JSON)
        fits = await http.post(CHAT, content=chat_body(max_tokens=1), headers=JSON)

    for response in (announced, streamed):
        assert response.status_code == 413
        assert assert_envelope(response.json())["code"] == "body_too_large"
    assert fits.status_code == 200


async def test_a_limit_above_what_is_discarded_is_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "MAX_DISCARDED_BYTES", 1000)
    raw = chat_body(max_tokens=1, user="u" * 2000)

    async def pieces() -> AsyncIterator[bytes]:
        yield raw[:1500]
        yield raw[1500:]

    async with client(served(), max_body_bytes=5000) as http:
        announced = await http.post(CHAT, content=raw, headers=JSON)
        streamed = await http.post(CHAT, content=pieces(), headers=JSON)

    assert (announced.status_code, streamed.status_code) == (200, 200)


async def test_unknown_paths_and_methods_have_the_envelope() -> None:
    """Keeps B84 out: docs/bugbank.md."""
    async with client(served()) as http:
        unknown = await http.get("/v2/nothing")
        slash = await http.post(CHAT + "/", json={})
        method = await http.get(CHAT)

    assert (unknown.status_code, slash.status_code, method.status_code) == (404, 404, 405)
    assert method.headers["allow"] == "POST"
    for response in (unknown, slash, method):
        assert_envelope(response.json())


async def test_a_fault_of_ours_is_a_500_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = served()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    model.client.submit = broken  # type: ignore[method-assign, assignment]
    async with client(model) as http:
        response = await http.post(COMPLETIONS, content=completion_body(), headers=JSON)

    assert response.status_code == 500
    error = assert_envelope(response.json())
    assert error["type"] == "server_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError: secret" in caplog.text


async def test_of_a_field_that_is_given_twice_the_last_counts() -> None:
    """Keeps B84 out: docs/bugbank.md."""
    model = served()
    async with client(model) as http:
        raw = b'{"model":"m","prompt":"p","max_tokens":5,"max_tokens":2}'
        await http.post(COMPLETIONS, content=raw, headers=JSON)

    assert model.client.submitted[0].params.max_tokens == 2


GOOD = b'"model":"m","prompt":"p","max_tokens":1'


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\xef\xbb\xbf{%s}" % GOOD, 400),
        ('{"model":"m","prompt":"p"}'.encode("utf-16"), 400),
        (b"{%s} {}" % GOOD, 400),
        (b" \n{%s}\r\n" % GOOD, 200),
        (b'{%s,"x":%s%s}' % (GOOD, b"[" * 150, b"]" * 150), 200),
        (b'{%s,"x":%s%s}' % (GOOD, b"[" * 20_000, b"]" * 20_000), 400),
        (b'{%s,"x":%s%s}' % (GOOD, b"[" * 100_000, b"]" * 100_000), 413),
        (b'{%s,"x":%s}' % (GOOD, b"9" * 5000), 400),
        (b'{%s,"seed":-0,"temperature":-0.0}' % GOOD, 200),
        (b'{%s,"n":1.0}' % GOOD, 400),
        (b'{%s,"max_tokens":1E0}' % GOOD, 400),
        (b'{%s,"stop":null,"n":null,"logit_bias":null}' % GOOD, 200),
        (b'{%s,"":1,"a\\u0000":2}' % GOOD, 200),
        (b'{%s,"\\ud83d":1}' % GOOD, 400),
        (b'{%s,"metadata":{"a":"\\ud83d"}}' % GOOD, 400),
    ],
)
async def test_odd_json_is_read_or_refused_and_never_a_fault(raw: bytes, status: int) -> None:
    """Keeps B24 and B84 out: docs/bugbank.md."""
    async with client(served()) as http:
        response = await http.post(COMPLETIONS, content=raw, headers=JSON)

    assert response.status_code == status, response.text
    if status != 200:
        assert_envelope(response.json())


async def test_a_body_that_is_nested_too_deeply_is_refused_before_it_is_known_what_it_is() -> None:
    error = await refused("/tokenize", b'{"a":%s%s}' % (b"[" * 20_000, b"]" * 20_000))

    assert error["code"] == "invalid_json"


async def test_a_wrong_number_is_repeated_and_a_wrong_text_is_not() -> None:
    number = await refused(COMPLETIONS, completion_body(n=1.5))
    text = await refused(COMPLETIONS, completion_body(n="my secret"))

    assert number["message"] == "n=1.5: input should be a valid integer"
    assert text["message"] == "n: input should be a valid integer"
