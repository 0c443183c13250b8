"""The official client of the Responses API against a real server on a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam, ResponseInputParam
from pydantic import BaseModel
from tests.server.fakes import FakeEngine, Served, served
from tests.server.live import CHAIN, PIECES, live
from tests.server.responses.speaking import prompt_of
from tests.server.test_tool_calls import saying, tagged


@asynccontextmanager
async def client_for(model: Served) -> AsyncIterator[AsyncOpenAI]:
    with live(model, api_keys=("k",)) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            yield client


@pytest.fixture
async def sdk() -> AsyncIterator[AsyncOpenAI]:
    async with client_for(served(pieces=PIECES, engine=FakeEngine(CHAIN))) as client:
        yield client


async def test_whole_and_kept(sdk: AsyncOpenAI) -> None:
    answer = await sdk.responses.create(
        model="m",
        instructions="be short",
        input=[{"role": "user", "content": "p"}],
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body={"stop": "!"},
    )
    found = await sdk.responses.retrieve(answer.id)
    items = [item async for item in await sdk.responses.input_items.list(answer.id)]
    counted = await sdk.responses.input_tokens.count(instructions="be short", input="p")
    await sdk.responses.delete(answer.id)

    assert answer.output_text == "Hello world"
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.input_tokens == counted.input_tokens == 38
    assert found == answer
    assert [item.type for item in items] == ["message"]
    with pytest.raises(openai.NotFoundError, match="not found"):
        await sdk.responses.retrieve(answer.id)


async def test_streamed(sdk: AsyncOpenAI) -> None:
    events = [
        event
        async for event in await sdk.responses.create(
            model="m", input="p", stream=True, extra_body={"stop": "!"}
        )
    ]

    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        "Hello world"
    )
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Hello world"


async def test_the_streaming_helper_puts_the_answer_together(sdk: AsyncOpenAI) -> None:
    async with sdk.responses.stream(model="m", input="p", extra_body={"stop": "!"}) as stream:
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_response()

    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert answer.output_text == "Hello world"


TOOL: FunctionToolParam = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_with_a_tool_without_anything_kept(stream: bool) -> None:
    """As agents do it: all items of the first answer go back, with the result."""
    arguments = '{"city": "Paris"}'
    model = saying("<think>", "hm", "</think>", "I look.", tagged("f", arguments))
    question: ResponseInputParam = [{"role": "user", "content": "q"}]
    async with client_for(model) as sdk:
        if stream:
            async with sdk.responses.stream(
                model="m", input=question, tools=[TOOL], store=False
            ) as events:
                told = [event async for event in events]
                first = await events.get_final_response()
            deltas = [e.delta for e in told if e.type == "response.function_call_arguments.delta"]
            assert "".join(deltas) == arguments
        else:
            first = await sdk.responses.create(model="m", input=question, tools=[TOOL], store=False)
        call = first.output[-1]
        assert call.type == "function_call"
        items = [item.to_dict() for item in first.output]
        again = await sdk.responses.create(
            model="m",
            input=[*question, *items, _result(call.call_id)],  # type: ignore[list-item]
            tools=[TOOL],
            store=False,
        )

    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert (call.name, call.arguments) == ("f", arguments)
    assert first.usage is not None
    assert first.usage.output_tokens_details.reasoning_tokens == 2
    assert again.status == "completed"
    assert prompt_of(model).startswith(prompt_of(model, 0) + "I look.")


def _result(call_id: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": "ok"}


async def test_a_loop_with_a_tool_that_goes_on_from_what_is_kept() -> None:
    model = saying(tagged("f", "{}"))
    async with client_for(model) as sdk:
        first = await sdk.responses.create(model="m", input="q", tools=[TOOL])
        call = first.output[0]
        assert call.type == "function_call"
        await sdk.responses.create(
            model="m",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}],
            tools=[TOOL],
        )

    said = tagged("f", "{}") + "<|im_end|>\n"
    assert prompt_of(model, 1).startswith(prompt_of(model, 0) + said)
    assert "ok" in prompt_of(model, 1).removeprefix(prompt_of(model, 0) + said)


async def test_a_custom_tool_as_codex_has_it() -> None:
    patch = '*** Begin Patch\n*** Add File: a\n+"x"\n*** End Patch'
    arguments = '{"input": "' + patch.replace('"', '\\"').replace("\n", "\\n") + '"}'
    model = saying(tagged("apply_patch", arguments))
    async with (
        client_for(model) as sdk,
        sdk.responses.stream(
            model="m",
            input="q",
            tools=[{"type": "custom", "name": "apply_patch"}, {"type": "web_search"}],
        ) as events,
    ):
        told = [event async for event in events]
        answer = await events.get_final_response()

    call = answer.output[0]
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("apply_patch", patch)
    assert [e.input for e in told if e.type == "response.custom_tool_call_input.done"] == [patch]
    assert [tool.type for tool in answer.tools] == ["custom"]


class City(BaseModel):
    city: str


async def test_an_answer_in_the_form_of_a_schema_is_parsed() -> None:
    model = saying('{"city": "Paris"}')
    async with client_for(model) as sdk:
        answer = await sdk.responses.parse(model="m", input="q", text_format=City)
        free = await sdk.responses.create(model="m", input="q", text={"format": {"type": "text"}})
        with pytest.raises(openai.BadRequestError) as bad:
            await sdk.responses.create(
                model="m",
                input="q",
                text={"format": {"type": "json_schema", "name": "n", "schema": {"type": 5}}},
            )

    grammars = [request.params.grammar for request in model.client.submitted]
    assert answer.output_parsed == City(city="Paris")
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"
    assert grammars[0] is not None
    assert grammars[1] is None
    assert free.status == "completed"
    assert (bad.value.param or "").startswith("text.format")


async def test_in_the_background(sdk: AsyncOpenAI) -> None:
    answer = await sdk.responses.create(model="m", input="p", background=True)
    for _ in range(100):
        if answer.status not in ("queued", "in_progress"):
            break
        answer = await sdk.responses.retrieve(answer.id)
    again = await sdk.responses.cancel(answer.id)

    assert answer.status == again.status == "completed"
    assert answer.output_text.startswith("Hello world")


async def test_a_stream_in_the_background_is_resumed(sdk: AsyncOpenAI) -> None:
    stream = await sdk.responses.create(model="m", input="p", background=True, stream=True)
    events = [event async for event in stream]
    response_id = events[0].response.id  # type: ignore[union-attr]
    rest = await sdk.responses.retrieve(response_id, stream=True, starting_after=5)
    resumed = [event async for event in rest]

    assert resumed == events[6:]
    assert resumed[-1].type == "response.completed"


async def test_errors_are_of_the_clients_own_classes(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as previous:
        await sdk.responses.create(model="m", input="p", previous_response_id="resp_1")
    answer = await sdk.responses.create(model="m", input="p", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError) as synchronous:
        await sdk.responses.cancel(answer.id)

    assert previous.value.code == "previous_response_not_found"
    assert "synchronous" in str(synchronous.value)
