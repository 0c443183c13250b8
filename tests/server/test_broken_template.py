"""A model whose chat template cannot be parsed: what it can do is served, and the rest is told."""

import logging

import pytest
from tests.server.asgi import client
from tests.server.fakes import served

BROKEN = "a\n{% if %}"


async def test_chat_is_refused_with_the_place_and_the_way_out_and_completions_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = served(template=BROKEN)
    with caplog.at_level(logging.ERROR):
        async with client(model) as http:
            messages = [{"role": "user", "content": "q"}]
            chat = await http.post("/v1/chat/completions", json={"messages": messages})
            again = await http.post("/v1/messages", json={"messages": messages, "max_tokens": 1})
            completion = await http.post("/v1/completions", json={"prompt": "q", "max_tokens": 1})

    assert [record.message for record in caplog.records] == [
        "the chat template cannot be read: Expected an expression, got 'end of statement block' "
        "(line 2); every chat is refused, completions are not"
    ]
    assert (chat.status_code, again.status_code, completion.status_code) == (400, 400, 200)
    assert chat.json()["error"]["param"] == "messages"
    for answer in (chat, again):
        message = answer.json()["error"]["message"]
        assert "cannot be read" in message
        assert "send a prompt without it" in message
