"""Python clients, each led through a chat, a stream and a tool loop: URL MODEL NAME.

Runs in the environment that holds the clients, and needs nothing of ours. The server must hold the
scripted model of `scripted_model.py`: it calls `get_weather` and then says `ANSWER`. Ends with an
error where something else comes back.
"""

import asyncio
import json
import sys
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


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    assert city == "Paris", city
    return "21 degrees"


def openai_chat(url: str, model: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model=model, messages=messages)
    assert whole.choices[0].message.content == ANSWER, whole
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options=options
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER, text
    assert chunks[-1].usage.completion_tokens > 0

    for streamed in (False, True):
        messages = [{"role": "user", "content": QUESTION}]
        first = _openai_message(client, model, messages, streamed=streamed)
        [call] = first.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}, call
        messages.append(first.model_dump(exclude_none=True, exclude={"parsed", "refusal"}))
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        second = _openai_message(client, model, messages, streamed=streamed)
        assert second.content == ANSWER, second


def _openai_message(client: Any, model: str, messages: list[Any], *, streamed: bool) -> Any:
    if not streamed:
        answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL])
        return answer.choices[0].message
    with client.chat.completions.stream(model=model, messages=messages, tools=[TOOL]) as stream:
        return stream.get_final_completion().choices[0].message


def openai_responses(url: str, model: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    answer = client.responses.create(model=model, input=QUESTION)
    assert answer.output_text == ANSWER, answer
    with client.responses.stream(model=model, input=QUESTION) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == ANSWER
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed"), kinds

    tool = {"type": "function", **TOOL["function"], "strict": False}
    first = client.responses.create(model=model, input=QUESTION, tools=[tool])
    [call] = [item for item in first.output if item.type == "function_call"]
    result = get_weather(**json.loads(call.arguments))
    output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
    second = client.responses.create(
        model=model, input=[output], previous_response_id=first.id, tools=[tool]
    )
    assert second.output_text == ANSWER, second


def openai_embeddings(url: str, model: str) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    found = client.embeddings.create(model=model, input=["one", "two"])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 100
    assert abs(sum(value**2 for value in found.data[0].embedding) - 1) < 1e-3


def anthropic_messages(url: str, model: str) -> None:
    from anthropic import Anthropic

    client = Anthropic(base_url=url, api_key=KEY)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    whole = client.messages.create(model=model, max_tokens=64, messages=messages)
    assert whole.content[0].text == ANSWER, whole
    with client.messages.stream(model=model, max_tokens=64, messages=messages) as stream:
        assert "".join(stream.text_stream) == ANSWER
    count = client.messages.count_tokens(model=model, messages=messages)
    assert count.input_tokens == whole.usage.input_tokens, (count, whole.usage)

    tool = {"name": "get_weather", "description": "The weather.", "input_schema": PARAMETERS}
    with client.messages.stream(
        model=model, max_tokens=64, messages=messages, tools=[tool]
    ) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use", first
    [call] = [block for block in first.content if block.type == "tool_use"]
    messages.append({"role": "assistant", "content": first.model_dump()["content"]})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)}
    messages.append({"role": "user", "content": [result]})
    second = client.messages.create(model=model, max_tokens=64, messages=messages, tools=[tool])
    assert second.content[0].text == ANSWER, second


def litellm_completion(url: str, model: str) -> None:
    """LITELLM_LOCAL_MODEL_COST_MAP must be set: it would ask the internet for prices."""
    import litellm

    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for provider in ("openai", "hosted_vllm"):
        options = {"model": f"{provider}/{model}", "api_base": f"{url}/v1", "api_key": KEY}
        whole = litellm.completion(messages=messages, **options)
        assert whole.choices[0].message.content == ANSWER, whole
        stream = litellm.completion(messages=messages, stream=True, **options)
        assert "".join(c.choices[0].delta.content or "" for c in stream) == ANSWER
        first = litellm.completion(messages=messages, tools=[TOOL], **options).choices[0].message
        [call] = first.tool_calls
        result = get_weather(**json.loads(call.function.arguments))
        reply = {"role": "tool", "tool_call_id": call.id, "content": result}
        more = [*messages, first.model_dump(exclude_none=True), reply]
        second = litellm.completion(messages=more, tools=[TOOL], **options)
        assert second.choices[0].message.content == ANSWER, second


def langchain(url: str, model: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key=KEY)
    assert chat.invoke(QUESTION).content == ANSWER
    assert "".join(str(piece.content) for piece in chat.stream(QUESTION)) == ANSWER
    bound = chat.bind_tools([tool(get_weather)])
    first = bound.invoke([HumanMessage(QUESTION)])
    [call] = first.tool_calls
    result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
    assert bound.invoke([HumanMessage(QUESTION), first, result]).content == ANSWER
    for check in (False,):
        vectors = OpenAIEmbeddings(
            model=model, base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=check
        )
        assert len(vectors.embed_query("one")) > 100


def llama_index(url: str, model: str) -> None:
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(
        model=model, api_base=f"{url}/v1", api_key=KEY, is_chat_model=True, context_window=2048
    )
    assert str(chat.complete(QUESTION)) == ANSWER
    assert "".join(piece.delta for piece in chat.stream_complete(QUESTION)) == ANSWER


def llm_tool(url: str, model: str) -> None:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        entry = f'- {{model_id: m, model_name: "{model}", api_base: "{url}/v1"}}\n'
        Path(directory, "extra-openai-models.yaml").write_text(entry)
        found = subprocess.run(
            ["env", f"LLM_USER_PATH={directory}", f"OPENAI_API_KEY={KEY}",
             sys.executable, "-m", "llm", "-m", "m", QUESTION],
            capture_output=True,
            text=True,
            check=True,
        )  # fmt: skip
    assert found.stdout.strip() == ANSWER, found.stdout


def instructor_tools(url: str, model: str) -> None:
    """On a real model, which says what it likes in the form that it must have."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: str

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=model,
            response_model=Weather,
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=512,
            temperature=0,
            max_retries=1,
        )
        assert isinstance(found.city, str)


def pydantic_ai(url: str, model: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
    agent = Agent(OpenAIChatModel(model, provider=provider), tools=[get_weather])
    assert agent.run_sync(QUESTION).output == ANSWER

    async def streamed() -> str:
        async with agent.run_stream(QUESTION) as result:
            return await result.get_output()

    assert asyncio.run(streamed()) == ANSWER


def openai_agents(url: str, model: str) -> None:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
        agent = Agent(
            name="a",
            instructions="Be brief.",
            tools=[function_tool(get_weather)],
            model=kind(model=model, openai_client=client),
        )
        assert Runner.run_sync(agent, QUESTION).final_output == ANSWER


def smolagents_tools(url: str, model: str) -> None:
    """On a real model, which is made to call; there is nothing to call but `final_answer`."""
    from smolagents import OpenAIServerModel, ToolCallingAgent

    served = OpenAIServerModel(model_id=model, api_base=f"{url}/v1", api_key=KEY)
    agent = ToolCallingAgent(tools=[], model=served, max_steps=2, verbosity_level=0)
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
    CLIENTS[sys.argv[3]](sys.argv[1], sys.argv[2])
