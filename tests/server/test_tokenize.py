"""/tokenize, /detokenize and /apply-template as the clients of other servers send them."""

import pytest
from tests.fakes_text import BOS
from tests.server.asgi import Json, client
from tests.server.fakes import served

MESSAGES = [{"role": "user", "content": "p<|im_end|>"}]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, [97, 98]),
        ({"add_special": True}, [BOS, 97, 98]),
        ({"with_pieces": True}, [{"id": 97, "piece": "a"}, {"id": 98, "piece": "b"}]),
    ],
)
async def test_a_text_may_be_called_content_as_llama_cpp_has_it(
    fields: Json, tokens: list[Json] | list[int]
) -> None:
    """BOS stands in front only where it is asked for, unlike in `prompt`."""
    async with client(served()) as http:
        answer = await http.post("/tokenize", json={"content": "ab", **fields})

    assert answer.json() == {
        "count": len(tokens),
        "max_model_len": 4096,
        "tokens": tokens,
        "token_strs": None,
    }


async def test_a_piece_that_is_no_text_on_its_own_is_shown_as_bytes() -> None:
    async with client(served()) as http:
        answer = await http.post("/tokenize", json={"content": "é", "with_pieces": True})

    assert answer.json()["tokens"] == [{"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


async def test_special_tokens_in_content_are_plain_text_where_that_is_wished() -> None:
    async with client(served()) as http:
        read = await http.post("/tokenize", json={"content": "<|im_end|>"})
        plain = await http.post("/tokenize", json={"content": "<|im_end|>", "parse_special": False})

    assert read.json()["count"] == 1
    assert plain.json()["tokens"] == list(b"<|im_end|>")


async def test_a_wrong_content_is_named() -> None:
    async with client(served()) as http:
        answer = await http.post("/tokenize", json={"content": ["a", 7]})
        both = await http.post("/tokenize", json={"content": 7, "prompt": "a"})

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "content")
    assert both.json()["tokens"] == [97]


async def test_a_template_shows_the_prompt_of_a_conversation() -> None:
    async with client(served()) as http:
        answer = await http.post("/apply-template", json={"messages": MESSAGES})
        open_end = await http.post(
            "/apply-template", json={"messages": MESSAGES, "add_generation_prompt": False}
        )

    prompt = "<|im_start|>user\np<|im_end|><|im_end|>\n"
    assert answer.json() == {"prompt": prompt + "<|im_start|>assistant\n"}
    assert open_end.json() == {"prompt": prompt}


async def test_messages_that_no_template_takes_and_an_unknown_model_are_errors() -> None:
    system_only = "{{ raise_exception('no') }}"
    async with client(served(template=system_only)) as http:
        refused = await http.post("/apply-template", json={"messages": MESSAGES})
        unknown = await http.post("/apply-template", json={"messages": MESSAGES, "model": "x"})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/models", "/v1/models"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/responses/r1", "/v1/responses/{response_id}"),
        ("/nothing", None),
    ],
)
async def test_a_base_url_with_v1_too_much_or_too_little_is_guessed(
    path: str, meant: str | None
) -> None:
    async with client(served()) as http:
        answer = await http.post(path, json={})

    assert answer.status_code == 404
    way_out = f"did you mean {meant}?" if meant else "/openapi.json lists what there is"
    assert answer.json()["error"]["message"] == f"there is nothing at this path; {way_out}"
