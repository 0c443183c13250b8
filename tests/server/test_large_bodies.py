"""One request, however large or odd, neither stops the server nor costs minutes to refuse."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message, Scope
from tests.server.asgi import chat, client, complete, make_app
from tests.server.fakes import FakeEngine, served

from kokuban.engine.generation import TextDelta
from kokuban.server import completions
from kokuban.server.errors import HttpError
from kokuban.server.work import MAX_CONTAINERS, MAX_VALUES, check_values

USER = {"role": "user", "content": "p"}


async def test_many_short_prompts_are_read_in_a_worker_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps B89 out: docs/bugbank.md."""
    model = served()
    encode = model.tokenizer.encode
    threads = set()

    def watched(text: str, **options: Any) -> list[int]:
        threads.add(threading.get_ident())
        return encode(text, **options)

    monkeypatch.setattr(model.tokenizer, "encode", watched)
    assert (await complete(model, ["p" * 1000] * 16, max_tokens=1)).status_code == 200

    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_what_is_surely_too_long_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = served(engine=FakeEngine(max_context_tokens=16))

    def never(*args: Any, **options: Any) -> list[int]:
        raise AssertionError("this was read")

    monkeypatch.setattr(model.tokenizer, "encode", never)
    monkeypatch.setattr(model.chat_template, "encode_chat", never)
    text = "x" * (16 * 128 + 1)
    answers = [
        await complete(model, text),
        await complete(model, [97] * 16),
        await chat(model, text),
        await chat(model, messages=[USER] * 17),
    ]

    errors = [answer.json()["error"] for answer in answers]
    assert [error["code"] for error in errors] == ["context_length_exceeded"] * 4
    assert [error["param"] for error in errors] == ["prompt", "prompt", "messages", "messages"]
    assert "has 2049 bytes, but the context holds 16 tokens" in errors[0]["message"]


@pytest.mark.parametrize(
    "value", [[{}] * (MAX_CONTAINERS + 1), [0] * (MAX_VALUES + 2), ["a"] * (MAX_VALUES + 2)]
)
def test_too_many_values_are_refused(value: list[Any]) -> None:
    with pytest.raises(HttpError) as caught:
        check_values(json.dumps({"x": value}).encode())

    assert caught.value.status == 413


@pytest.mark.parametrize("text", ["{[,", '\\"{', "\\\\{", '"{"', "é{"])
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    check_values(json.dumps({"x": text * 50_000, "y": [1, 2]}, ensure_ascii=False).encode())


@pytest.mark.parametrize("raw", [b"{" * 40_000, b'"' + b"{" * 40_000, b'"\\' + b"[" * 40_000])
def test_what_is_no_json_ends(raw: bytes) -> None:
    try:
        check_values(raw)
    except HttpError:
        assert raw.startswith(b"{")


async def test_a_client_that_leaves_while_it_sends_is_one_quiet_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app(served())
    inbox: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b"{", "more_body": True},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return inbox.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope: Scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"",
                    "query_string": b"", "headers": headers, "http_version": "1.1",
                    "scheme": "http", "root_path": "", "client": None}  # fmt: skip
    with caplog.at_level("INFO", logger="kokuban.server.guard"):
        await app(scope, receive, send)

    assert sent == []
    assert [(line.levelname, line.exc_info) for line in caplog.records] == [("INFO", None)]
    assert b'"499"' in app.state.serving.metrics.render()


async def test_a_length_of_thousands_of_digits_is_too_large() -> None:
    async with client(served()) as http:
        headers = {"content-length": "9" * 5000, "content-type": "application/json"}
        answer = await http.post("/v1/completions", content=b"{}", headers=headers)

    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


async def test_half_a_pair_and_a_value_out_of_range_are_named() -> None:
    model = served()
    async with client(model) as http:
        half = await http.post(
            "/v1/completions",
            content=rb'{"model":"m","prompt":"\ud83d"}',
            headers={"content-type": "application/json"},
        )
        heads = [await http.head(path) for path in ("/health", "/")]
    out_of_range = await complete(model, temperature=3)

    error = half.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "invalid_value")
    assert "half of a surrogate pair" in error["message"]
    assert out_of_range.json()["error"]["code"] == "invalid_value"
    assert [head.status_code for head in heads] == [200, 200]


async def test_the_tokens_of_all_prompts_together_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "MAX_PROMPT_TOKENS", 20)
    model = served(engine=FakeEngine(max_context_tokens=16))
    taken = await complete(model, [[97] * 10, [97] * 10], max_tokens=1)
    refused = await complete(model, [[97] * 10, [97] * 11, [97]], max_tokens=1)

    assert taken.status_code == 200
    assert refused.json()["error"]["param"] == "prompt"
    assert refused.json()["error"]["message"] == (
        "the first 2 of 3 prompts have 21 tokens together; the limit of one request is 20: "
        "send several requests"
    )
    assert len(model.client.submitted) == 2


async def test_a_longer_context_may_be_filled_by_one_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completions, "MAX_PROMPT_TOKENS", 4)
    model = served(engine=FakeEngine(max_context_tokens=16))

    assert (await complete(model, [97] * 8, max_tokens=1)).status_code == 200


async def test_one_prompt_is_handed_over_in_each_turn_of_the_loop() -> None:
    """Keeps B89 out: docs/bugbank.md."""
    turn, begun = 0, []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def source() -> AsyncGenerator[TextDelta]:
        begun.append(turn)
        yield TextDelta(choice=0, text="t")

    counting = asyncio.create_task(count_turns())
    texts = [delta.text async for delta in completions._merge([source() for _ in range(8)])]
    counting.cancel()

    assert texts == ["t"] * 8
    assert len(set(begun)) == 8, begun
