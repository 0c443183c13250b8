"""Fields that nobody here knows: named in a header, or refused; and the names of the model."""

import pytest
from tests.server.asgi import Json, client
from tests.server.fakes import served

CHAT = "/v1/chat/completions"
BODY: Json = {"model": "m", "messages": [{"role": "user", "content": "p"}], "max_tokens": 1}
WARNING = "x-kokuban-warning"


async def test_unknown_fields_are_named_in_a_header_and_change_nothing() -> None:
    """B84: an unknown field is left out, and the client can see it."""
    async with client(served()) as http:
        plain = await http.post(CHAT, json=BODY)
        odd = await http.post(CHAT, json={**BODY, "temprature": 9, "store": True, "foo": None})

    assert WARNING not in plain.headers
    assert odd.status_code == 200
    assert odd.headers[WARNING] == "unknown fields: temprature, foo"


async def test_a_stream_and_an_error_have_the_header_too() -> None:
    async with client(served()) as http:
        stream = await http.post(CHAT, json={**BODY, "stream": True, "foo": 1})
        error = await http.post(CHAT, json={**BODY, "top_p": 7, "foo": 1})

    assert (stream.status_code, error.status_code) == (200, 400)
    assert stream.headers[WARNING] == error.headers[WARNING] == "unknown fields: foo"


async def test_the_header_is_short_and_plain_whatever_the_names_are() -> None:
    names = ["a\r\nset-cookie: x", "é", "x" * 65, *(f"f{i}" for i in range(20))]
    async with client(served()) as http:
        response = await http.post(CHAT, json={**BODY, **dict.fromkeys(names, 1)})

    assert response.headers[WARNING] == "unknown fields: ?, ?, ?, f0, f1, f2, f3, f4, and 15 more"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"max_token": 1}, "max_token", "did you mean 'max_tokens'?"),
        ({"zzz": 1}, "zzz", "leave it out"),
        ({"é": 1}, None, "the field 'é' is not known"),
        (
            {"stream": True, "stream_options": {"usage": True}},
            "stream_options.usage",
            "the field 'stream_options.usage' is not known",
        ),
    ],
)
async def test_a_strict_server_refuses_them_with_the_nearest_name(
    fields: Json, param: str | None, message: str
) -> None:
    async with client(served(), strict=True) as http:
        response = await http.post(CHAT, json={**BODY, **fields})

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "unknown_field")
    assert message in error["message"]


async def test_a_strict_server_takes_what_is_known_and_what_templates_may_know() -> None:
    message = {"role": "user", "content": "p", "mood": "good"}
    async with client(served(), strict=True) as http:
        response = await http.post(CHAT, json={**BODY, "messages": [message], "store": False})

    assert response.status_code == 200


async def test_a_model_may_have_several_names_and_answers_say_the_first() -> None:
    async with client(served(), model_aliases=("gpt-4o", "org/model")) as http:
        models = (await http.get("/v1/models")).json()["data"]
        alias = await http.get("/v1/models/org/model")
        unknown = await http.get("/v1/models/nope")
        answer = await http.post(CHAT, json={**BODY, "model": "gpt-4o"})

    assert [(card["id"], card["root"]) for card in models] == [
        ("m", "m"), ("gpt-4o", "m"), ("org/model", "m"),
    ]  # fmt: skip
    assert set(models[0]) >= {"id", "object", "created", "owned_by"}
    assert alias.json() == models[2]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["model"] == "m"


NAMELESS: dict[str, Json] = {
    CHAT: {"messages": BODY["messages"], "max_tokens": 1},
    "/v1/completions": {"prompt": "p", "max_tokens": 1},
    "/v1/embeddings": {"input": "p"},
    "/v1/messages": {"messages": BODY["messages"], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": BODY["messages"]},
    "/v1/responses": {"input": "p", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "p"},
    "/tokenize": {"prompt": "p"},
    "/detokenize": {"tokens": [97]},
    "/apply-template": {"messages": BODY["messages"]},
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("path", NAMELESS)
async def test_a_body_that_names_no_model_is_answered_by_the_one_that_is_served(
    path: str, strict: bool
) -> None:
    """As llama.cpp and vLLM answer it; a name that nobody here has is an error all the same."""
    async with client(served(), strict=strict) as http:
        answers = [
            await http.post(path, json={**NAMELESS[path], **name})
            for name in ({}, {"model": None}, {"model": ""}, {"model": "nope"})
        ]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 404]
    told = [answer.json().get("model", "m") for answer in answers[:3]]
    assert told == ["m", "m", "m"]
    assert all(WARNING not in answer.headers for answer in answers)


EFFORT = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}" + (
    "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
)


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"reasoning_effort": "low"}, "plow"),
        ({"reasoning_effort": "none"}, "pnone!"),
        (
            {
                "reasoning_effort": "none",
                "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "x"},
            },
            "px",
        ),
    ],
)
async def test_the_effort_reaches_the_template_unless_it_is_told_otherwise(
    fields: Json, prompt: str
) -> None:
    model = served(template=EFFORT)
    async with client(model) as http:
        response = await http.post(CHAT, json={**BODY, **fields})

    assert response.status_code == 200
    assert bytes(model.client.submitted[0].prompt_token_ids).decode() == prompt
