"""Python clients, each led through a chat, a stream and a tool loop: URL MODEL NAME scripted|real.

Runs in the environment that holds the clients, and needs nothing of ours. The scripted model of
`scripted_model.py` calls `get_weather` and then says `ANSWER`; a real model is made to call, and
says what it likes. Ends with an error where something else comes back.
"""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER = "It is 21 degrees in Paris."
QUESTION = "What is the weather in Paris?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": PARAMETERS,
    },
}
KEY = "k"


CUT = "response.incomplete"
"""The end of an answer that a real model did not end by itself."""

GREEDY = {"max_tokens": 512, "temperature": 0}


@dataclass(frozen=True)
class Served:
    """A server, and how much is known of what its model says."""

    url: str
    model: str
    scripted: bool

    def check(self, text: str | None) -> None:
        """Is it an answer?"""
        assert text == ANSWER if self.scripted else text, text

    def check_call(self, arguments: dict[str, Any]) -> None:
        """Do the arguments fit the tool?"""
        assert isinstance(arguments["city"], str), arguments
        assert not self.scripted or arguments == {"city": "Paris"}, arguments

    def forced(self, value: Any = "required") -> dict[str, Any]:
        """What makes a model call that would not do so by itself."""
        return {} if self.scripted else {"tool_choice": value}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    assert isinstance(city, str), city
    return "21 degrees"


def openai_chat(served: Served) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked = {"model": served.model, **GREEDY}
    whole = client.chat.completions.create(messages=messages, **asked)
    served.check(whole.choices[0].message.content)
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        messages=messages, stream=True, stream_options=options, **asked
    )
    chunks = list(stream)
    served.check("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
    assert chunks[-1].usage.completion_tokens > 0

    for streamed in (False, True):
        messages = [{"role": "user", "content": QUESTION}]
        forced = {**asked, **served.forced()}
        first = _openai_message(client, messages, forced, streamed=streamed)
        [call] = first.tool_calls
        served.check_call(json.loads(call.function.arguments))
        messages.append(first.model_dump(exclude_none=True, exclude={"parsed", "refusal"}))
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        served.check(_openai_message(client, messages, asked, streamed=streamed).content)


def _openai_message(
    client: Any, messages: list[Any], asked: dict[str, Any], *, streamed: bool
) -> Any:
    if not streamed:
        answer = client.chat.completions.create(messages=messages, tools=[TOOL], **asked)
        return answer.choices[0].message
    with client.chat.completions.stream(messages=messages, tools=[TOOL], **asked) as stream:
        return stream.get_final_completion().choices[0].message


def openai_responses(served: Served) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    asked: dict[str, Any] = {"model": served.model, "max_output_tokens": 512, "temperature": 0}
    served.check(client.responses.create(input=QUESTION, **asked).output_text)
    with client.responses.stream(input=QUESTION, **asked) as stream:
        events = list(stream)
    served.check("".join(e.delta for e in events if e.type == "response.output_text.delta"))
    ends = ("response.completed",) if served.scripted else ("response.completed", CUT)
    assert events[0].type == "response.created", events[0]
    assert events[-1].type in ends, events[-1]

    tool = {"type": "function", **TOOL["function"], "strict": False}
    first = client.responses.create(input=QUESTION, tools=[tool], **asked, **served.forced())
    [call] = [item for item in first.output if item.type == "function_call"]
    served.check_call(json.loads(call.arguments))
    result = get_weather(**json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    second = client.responses.create(
        input=[output], previous_response_id=first.id, tools=[tool], **asked
    )
    served.check(second.output_text)


def openai_embeddings(served: Served) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    found = client.embeddings.create(model=served.model, input=["one", "two"])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 100
    assert abs(sum(value**2 for value in found.data[0].embedding) - 1) < 1e-3


def anthropic_messages(served: Served) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=served.url, api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {
        "model": served.model, "max_tokens": 512, "extra_body": {"temperature": 0},
    }  # fmt: skip
    whole = client.messages.create(messages=messages, **asked)
    served.check(whole.content[0].text)
    with client.messages.stream(messages=messages, **asked) as stream:
        served.check("".join(stream.text_stream))
    count = client.messages.count_tokens(model=served.model, messages=messages)
    assert count.input_tokens == whole.usage.input_tokens, (count, whole.usage)

    tool = {"name": "get_weather", "description": "The weather.", "input_schema": PARAMETERS}
    asked["tools"] = [tool]
    with client.messages.stream(
        messages=messages, **asked, **served.forced({"type": "any"})
    ) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use", first
    [call] = [block for block in first.content if block.type == "tool_use"]
    served.check_call(call.input)
    messages.append({"role": "assistant", "content": first.model_dump()["content"]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)}
    messages.append({"role": "user", "content": [result]})
    second = client.messages.create(messages=messages, **asked)
    served.check(second.content[0].text)


def litellm_completion(served: Served) -> None:
    """LITELLM_LOCAL_MODEL_COST_MAP must be set: it would ask the internet for prices."""
    import litellm

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for provider in ("openai", "hosted_vllm"):
        options: dict[str, Any] = {
            "model": f"{provider}/{served.model}",
            "api_base": f"{served.url}/v1",
            "api_key": KEY,
            **GREEDY,
        }
        whole = litellm.completion(messages=messages, **options)
        served.check(whole.choices[0].message.content)
        stream = litellm.completion(messages=messages, stream=True, **options)
        served.check("".join(c.choices[0].delta.content or "" for c in stream))
        options["tools"] = [TOOL]
        answer = litellm.completion(messages=messages, **options, **served.forced())
        first = answer.choices[0].message
        [call] = first.tool_calls
        served.check_call(json.loads(call.function.arguments))
        result = get_weather(**json.loads(call.function.arguments))
        reply = {"role": "tool", "tool_call_id": call.id, "content": result}
        more = [*messages, first.model_dump(exclude_none=True), reply]
        served.check(litellm.completion(messages=more, **options).choices[0].message.content)


def langchain(served: Served) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(model=served.model, base_url=f"{served.url}/v1", api_key=KEY, **GREEDY)
    served.check(chat.invoke(QUESTION).content)
    served.check("".join(str(piece.content) for piece in chat.stream(QUESTION)))
    tools = [tool(get_weather)]
    first = chat.bind_tools(tools, **served.forced()).invoke([HumanMessage(QUESTION)])
    [call] = first.tool_calls
    served.check_call(call["args"])
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    served.check(chat.bind_tools(tools).invoke([HumanMessage(QUESTION), first, result]).content)
    vectors = OpenAIEmbeddings(
        model=served.model,
        base_url=f"{served.url}/v1",
        api_key=KEY,
        check_embedding_ctx_length=False,
    )
    assert len(vectors.embed_query("one")) > 100


def llama_index(served: Served) -> None:
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(
        model=served.model,
        api_base=f"{served.url}/v1",
        api_key=KEY,
        is_chat_model=True,
        context_window=2048,
        **GREEDY,
    )
    served.check(str(chat.complete(QUESTION)))
    served.check("".join(piece.delta for piece in chat.stream_complete(QUESTION)))


def llm_tool(served: Served) -> None:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        entry = f'- {{model_id: m, model_name: "{served.model}", api_base: "{served.url}/v1"}}\n'
        Path(directory, "extra-openai-models.yaml").write_text(entry)
        found = subprocess.run(
            ["env", f"LLM_USER_PATH={directory}", f"OPENAI_API_KEY={KEY}",
             sys.executable, "-m", "llm", "-m", "m", "-o", "max_tokens", "512",
             "-o", "temperature", "0", QUESTION],
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
    served.check(found.stdout.strip())


def instructor_tools(served: Served) -> None:
    """On a real model, which says what it likes in the form that it must have."""
    import instructor
    from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class Weather(BaseModel):
        city: str = Field(max_length=40)

    client = OpenAI(base_url=f"{served.url}/v1", api_key=KEY)
    asked: dict[str, Any] = {
        "model": served.model,
        "response_model": Weather,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_retries": 1,
        **GREEDY,
    }
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(**asked)
        assert isinstance(found.city, str)
    # Any JSON object will do for the server: a small model may not find this one, or no end.
    with suppress(IncompleteOutputException, InstructorRetryException):
        instructor.from_openai(client, mode=instructor.Mode.JSON).chat.completions.create(**asked)


def pydantic_ai(served: Served) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{served.url}/v1", api_key=KEY)
    chat = OpenAIChatModel(served.model, provider=provider)
    # A real model is not made to call here: the agent would force it again in every turn.
    agent = Agent(chat, tools=[get_weather], model_settings=dict(GREEDY))
    served.check(agent.run_sync(QUESTION).output)

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output()

    served.check(asyncio.run(streamed()))


def openai_agents(served: Served) -> None:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    # Its tools are strict, so the script cannot follow; greedy it would repeat itself for ever.
    settings = ModelSettings(**({} if served.scripted else GREEDY), **served.forced())
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY)
        agent = Agent(
            name="a",
            instructions="Be brief.",
            tools=[function_tool(get_weather)],
            model=kind(model=served.model, openai_client=client),
            model_settings=settings,
        )
        served.check(Runner.run_sync(agent, QUESTION).final_output)


def smolagents_tools(served: Served) -> None:
    """On a real model, which is made to call; there is nothing to call but `final_answer`."""
    from smolagents import OpenAIServerModel, ToolCallingAgent

    model = OpenAIServerModel(
        model_id=served.model, api_base=f"{served.url}/v1", api_key=KEY, **GREEDY
    )
    agent = ToolCallingAgent(tools=[], model=model, max_steps=2, verbosity_level=0)
    assert isinstance(agent.run(QUESTION), str)


CLIENTS = {
    "openai": openai_chat,
    "openai-responses": openai_responses,
    "openai-embeddings": openai_embeddings,
    "anthropic": anthropic_messages,
    "litellm": litellm_completion,
    "langchain-openai": langchain,
    "llama-index-openai-like": llama_index,
    "llm": llm_tool,
    "instructor": instructor_tools,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "smolagents": smolagents_tools,
}


if __name__ == "__main__":
    URL, MODEL, NAME, KIND = sys.argv[1:]
    CLIENTS[NAME](Served(url=URL, model=MODEL, scripted=KIND == "scripted"))
