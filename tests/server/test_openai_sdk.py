"""The official client against a real server on a real socket."""

from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI
from tests.server.fakes import FakeEngine, served
from tests.server.live import CHAIN, PIECES, live

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "p"}]


@pytest.fixture
async def sdk() -> AsyncIterator[AsyncOpenAI]:
    model = served(pieces=PIECES, engine=FakeEngine(CHAIN))
    with live(model, api_keys=("k",)) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            yield client


async def test_chat_whole(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="m", messages=MESSAGES, seed=1, logprobs=True, top_logprobs=2, stop=["!"], n=3
    )

    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert choice.message.content == "Hello world"
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert choice.logprobs.content[0].token == "Hello"
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9


async def test_chat_streamed_with_usage(sdk: AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model="m",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        stop="!",
    )
    chunks = [chunk async for chunk in stream]

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello world"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 3


async def test_the_streaming_helper_puts_the_answer_together(sdk: AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model="m", messages=MESSAGES, stop="!") as stream:
        answer = await stream.get_final_completion()

    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"


async def test_completions_and_models(sdk: AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="m", prompt="p", logprobs=1, echo=True, stop="!")
    listed = [model.id async for model in await sdk.models.list()]
    one = await sdk.models.retrieve("m")

    assert answer.choices[0].text == "pHello world"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens is not None
    assert answer.choices[0].logprobs.tokens[:2] == ["p", "Hello"]
    assert listed == [one.id] == ["m"]


async def test_errors_are_of_the_clients_own_classes(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await sdk.chat.completions.create(model="nope", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.chat.completions.create(model="m", messages=MESSAGES, temperature=3)
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").models.list()

    assert unknown.value.code == "model_not_found"
    assert bad.value.param == "temperature"


async def test_an_error_in_mid_stream_reaches_the_caller() -> None:
    """Keeps B83 out: docs/bugbank.md."""
    model = served(pieces=PIECES, engine=FakeEngine({10: 262, 262: -1}))
    with live(model) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            with pytest.raises(openai.APIError, match="no number"):
                async for _ in stream:
                    pass
