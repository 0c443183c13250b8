"""The official client runs tools in a loop against a real server on a real socket."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.fakes import FAILS, FakeEngine, Served, served
from tests.server.live import live

Json = dict[str, Any]

TEMPLATE = (
    "{# <tool_call> </think> #}{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}{% endfor %}"
    "{% endfor %}{{ '!' if messages[-1].role == 'tool' else '?' }}"
)
"""Its last character tells a prompt that waits for the first answer from one that has results."""

SAYS = (
    "<think>I ask.</think>",
    "Let me look.\n<tool_",
    'call>\n{"name": "weather", "arguments": {"ci',
    'ty": "Oslo"}}\n</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}',
    "\n</tool_call>",
    "Oslo is cold,",
    " Rome is hot.",
)
CALLS, END = range(FIRST_PIECE, FIRST_PIECE + 5), range(FIRST_PIECE + 5, FIRST_PIECE + 7)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
WEATHER = {"Oslo": "cold", "Rome": "hot"}


def model(chain: dict[int, int] | None = None) -> Served:
    first, last = [ord("?"), *CALLS, EOT], [ord("!"), *END, EOT]
    script = dict([*pairwise(first), *pairwise(last)])
    return served(pieces=SAYS, engine=FakeEngine(chain or script), template=TEMPLATE)


@pytest.fixture
async def talk() -> AsyncIterator[tuple[AsyncOpenAI, Served]]:
    served_model = model()
    with live(served_model) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk:
            yield sdk, served_model


async def ask(sdk: AsyncOpenAI, messages: list[Any], *, stream: bool) -> Any:
    """The choice that the client puts together."""
    if not stream:
        answer = await sdk.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        return answer.choices[0]
    async with sdk.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as events:
        return (await events.get_final_completion()).choices[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_calls_its_tools_and_ends_with_words(
    talk: tuple[AsyncOpenAI, Served], stream: bool
) -> None:
    sdk, served_model = talk
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]

    for _ in range(3):
        choice = await ask(sdk, messages, stream=stream)
        messages.append(choice.message.model_dump(exclude_none=True))
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls:
            city = json.loads(call.function.arguments)["city"]
            result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER[city]}
            messages.append(result)

    assert choice.finish_reason == "stop"
    assert choice.message.content == "Oslo is cold, Rome is hot."
    assert messages[1]["content"] == "Let me look."
    assert messages[1]["reasoning_content"] == "I ask."
    assert len({call["id"] for call in messages[1]["tool_calls"]}) == 2
    first, second = (
        served_model.tokenizer.decode(request.prompt_token_ids, skip_special=False)
        for request in served_model.client.submitted
    )
    assert second.startswith(first.removesuffix("?"))
    assert second.removeprefix(first.removesuffix("?")) == (
        "[assistant]<think>I ask.</think>Let me look."
        '<call>{"name": "weather", "arguments": {"city": "Oslo"}}'
        '<call>{"name": "weather", "arguments": {"city": "Rome"}}'
        "[tool]cold[tool]hot!"
    )


async def test_a_failure_inside_a_call_reaches_the_caller() -> None:
    """B83: the call that had begun is no call, and the stream ends with an error."""
    chain = {ord("?"): CALLS[1], CALLS[1]: CALLS[2], CALLS[2]: FAILS}
    with live(model(chain)) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "Weather?"}],
                tools=TOOLS,
                stream=True,
            )
            chunks = []
            with pytest.raises(openai.APIError, match="no number"):  # noqa: PT012
                async for chunk in stream:
                    chunks.append(chunk)  # noqa: PERF401 - what came before the error counts

    choices = [chunk.choices[0] for chunk in chunks]
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert [call.function and call.function.name for call in calls] == ["weather", None]
    assert {choice.finish_reason for choice in choices} == {None}
