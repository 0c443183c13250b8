"""The official client against a real server on a real socket."""

from collections.abc import AsyncIterator

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam
from tests.fakes_text import EOT
from tests.server.fakes import FakeEngine, served
from tests.server.live import PIECES, A, B, C, live

from kokuban.core.step import Usage

CHAIN = {10: A, A: B, B: C, C: EOT}
MESSAGES: list[MessageParam] = [{"role": "user", "content": "p"}]


@pytest.fixture
async def sdk() -> AsyncIterator[AsyncAnthropic]:
    costs = Usage(0, 0, cached_tokens=6, cache_write_tokens=4)
    model = served(pieces=PIECES, engine=FakeEngine(CHAIN, usage=costs))
    with live(model, api_keys=("k",)) as url:
        async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            yield client


async def test_a_whole_message(sdk: AsyncAnthropic) -> None:
    answer = await sdk.messages.create(
        model="m", max_tokens=9, messages=MESSAGES, stop_sequences=["!"],
        system=[{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}],
    )  # fmt: skip

    [block] = answer.content
    assert block.type == "text"
    assert block.text == "Hello world"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "!")
    assert answer.usage.cache_read_input_tokens == 6
    assert answer.usage.cache_creation_input_tokens == 4
    counted = await sdk.messages.count_tokens(model="m", messages=MESSAGES, system="be")
    assert answer.usage.input_tokens == counted.input_tokens - 10
    assert answer._request_id is not None
    assert answer.id == f"msg_{answer._request_id}"


async def test_a_streamed_message(sdk: AsyncAnthropic) -> None:
    async with sdk.messages.stream(
        model="m", max_tokens=9, messages=MESSAGES, stop_sequences=["!"]
    ) as stream:
        text = [piece async for piece in stream.text_stream]
        answer = await stream.get_final_message()

    assert "".join(text) == "Hello world"
    assert len(text) == 2
    assert answer.stop_sequence == "!"
    assert answer.usage.cache_read_input_tokens == 6
    assert answer.usage.output_tokens == 3


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CUES = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}<|im_start|>"
    "{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls %}<tool_call>"
    "{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>"
    "assistant\n{{ 'answer' if messages[-1].role == 'tool' else 'call' }}"
)
"""Ends with a word that the model's next token depends on."""

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop(streamed: bool) -> None:
    """The model calls, the client answers the call, the model says what it was told."""
    pieces = (CALL, "Sunny.")
    model = served({ord("l"): A, A: EOT, ord("r"): B, B: EOT}, pieces=pieces, template=CUES)
    messages: list[MessageParam] = [{"role": "user", "content": "How is it in Paris?"}]
    fields = {"model": "m", "max_tokens": 99, "messages": messages,
              "tools": [{"name": "weather", "input_schema": SCHEMA}]}  # fmt: skip
    with live(model, tool_parser="hermes") as url:
        async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            for turn in range(2):
                if streamed:
                    async with client.messages.stream(**fields) as stream:  # type: ignore[arg-type]
                        answer: Message = await stream.get_final_message()
                else:
                    answer = await client.messages.create(**fields)  # type: ignore[call-overload]
                if turn == 0:
                    [call] = answer.content
                    assert call.type == "tool_use"
                    assert (call.name, call.input) == ("weather", {"city": "Paris"})
                    assert answer.stop_reason == "tool_use"
                    messages += [
                        answer.to_param(),
                        {"role": "user", "content": [
                            {"type": "tool_result", "tool_use_id": call.id, "content": "sun"}
                        ]},
                    ]  # fmt: skip

    [block] = answer.content
    assert block.type == "text"
    assert (block.text, answer.stop_reason) == ("Sunny.", "end_turn")
    first, second = (each.prompt_token_ids for each in model.client.submitted)
    common = len(first) - len("<assistant\ncall")
    assert second[:common] == first[:common]


async def test_the_models_are_listed(sdk: AsyncAnthropic) -> None:
    assert [model.id async for model in sdk.models.list()] == ["m"]
    assert (await sdk.models.retrieve("m")).id == "m"


async def test_the_beta_client(sdk: AsyncAnthropic) -> None:
    """Its paths have a query, its requests a header of their own."""
    answer = await sdk.beta.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "p"}],
        stop_sequences=["!"], betas=["interleaved-thinking-2025-05-14"],
    )  # fmt: skip

    assert answer.stop_reason == "stop_sequence"


async def test_errors_are_of_the_clients_own_classes(sdk: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await sdk.messages.create(model="no", max_tokens=9, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await sdk.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, extra_body={"temperature": 3}
        )
    with pytest.raises(anthropic.AuthenticationError):
        await sdk.with_options(api_key="wrong").messages.count_tokens(model="m", messages=MESSAGES)

    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id


async def test_an_authorization_header_does_as_well() -> None:
    model = served(pieces=PIECES, engine=FakeEngine(CHAIN))
    with live(model, api_keys=("k",)) as url:
        async with AsyncAnthropic(base_url=url, auth_token="k", max_retries=0) as client:
            counted = await client.messages.count_tokens(model="m", messages=MESSAGES)

    assert counted.input_tokens == 20


async def test_an_error_in_mid_stream_reaches_the_caller() -> None:
    model = served(pieces=PIECES, engine=FakeEngine({10: 262, 262: -1}))
    with live(model) as url:
        async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
            stream = await client.messages.create(
                model="m", max_tokens=9, messages=MESSAGES, stream=True
            )
            with pytest.raises(anthropic.APIStatusError, match="no number"):
                async for _ in stream:
                    pass
