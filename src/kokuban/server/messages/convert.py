"""From Anthropic's conversation to the `ChatRequest` that templates know.

    system                       a system message in front: see `turns`
    text                         a part of the turn's message
    tool_use                     a tool call of the assistant's message
    tool_result                  a message of the role `tool`, where it stands in the turn
    thinking                     `reasoning_content` of the assistant's message
    redacted_thinking            nothing: only Anthropic can read it
    an assistant's turn at last  is continued

The same beginning of a
conversation always becomes the same beginning of messages, so that its KV is found again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from kokuban.server.errors import from_validation
from kokuban.server.messages.models import (
    Block,
    Conversation,
    InputTool,
    ResultBlock,
    ToolChoice,
)
from kokuban.server.messages.turns import Placed, Turn, turns_of, wrong
from kokuban.server.openai_models import ChatRequest

Json = dict[str, Any]

ERROR_MARK = "Error:"
"""Stands in front of the result of a tool that failed: templates know no other way to say so."""

_SAME = (
    "max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "priority",
    "prompt_cache_key", "cache_salt", "cache_control",
)  # fmt: skip
"""Fields that mean the same to both."""

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def to_chat(body: Conversation, *, keep_billing_line: bool, late_system: bool) -> ChatRequest:
    """The same request in OpenAI's form.

    Args:
        keep_billing_line, late_system: see `turns_of`.

    Raises:
        RequestError: it holds what this server cannot read; names the field.
    """
    turns = turns_of(body, keep_billing_line=keep_billing_line, late_system=late_system)
    messages = [message for turn in turns for message in _messages(turn)]
    fields: Json = {"model": body.model, "messages": messages, **_fields(body)}
    if turns[-1].role == "assistant":
        _check_prefill(turns[-1], messages[-1])
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    try:
        return ChatRequest.model_validate(_present(fields))
    except ValidationError as error:
        raise from_validation(error) from None


def _fields(body: Conversation) -> Json:
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    choice = body.tool_choice
    no_parallel = choice is not None and choice.disable_parallel_tool_use
    shape = body.output_format or (body.output_config and body.output_config.format)
    schema = {"name": "answer", "schema": shape.json_schema, "strict": True} if shape else None
    return {
        **{name: getattr(body, name) for name in _SAME},
        "stop": body.stop_sequences or None,
        "user": body.metadata.user_id if body.metadata else None,
        "response_format": {"type": "json_schema", "json_schema": schema} if schema else None,
        "tools": [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        "tool_choice": _tool_choice(choice),
        "parallel_tool_calls": False if no_parallel else None,
        "chat_template_kwargs": {"enable_thinking": thinks, **(body.chat_template_kwargs or {})},
    }


def _present(fields: Json) -> Json:
    """Without what is absent, since a template may tell null from absent."""
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _messages(turn: Turn) -> list[Json]:
    if turn.role == "assistant":
        return [_assistant(turn.blocks)]
    if turn.role == "system":
        return [{"role": "system", "content": [_text_part(*placed) for placed in turn.blocks]}]
    return list(_user(turn.blocks))


def _user(blocks: Sequence[Placed]) -> Iterator[Json]:
    """Results as messages of their own; the texts between two of them as one message."""
    texts: list[Json] = []
    for block, param in blocks:
        if block.type != "tool_result":
            texts.append(_text_part(block, param))
            continue
        if texts:
            yield {"role": "user", "content": texts}
            texts = []
        yield _tool_message(block, param)
    if texts:
        yield {"role": "user", "content": texts}


def _assistant(blocks: Sequence[Placed]) -> Json:
    texts: list[Json] = []
    calls: list[Json] = []
    thoughts: list[str] = []
    for block, param in blocks:
        match block.type:
            case "tool_use":
                calls.append(_call(block, param))
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                pass
            case _:
                texts.append(_text_part(block, param))
    message: Json = {"role": "assistant", "content": texts or ""}
    if calls:
        message["tool_calls"] = calls
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    return message


def _text_part(block: Block | ResultBlock, param: str) -> Json:
    if block.type != "text":
        raise wrong(
            param, f"is of type {block.type[:64]!r}, which cannot be read here; send it as text"
        )
    if block.text is None:
        raise wrong(f"{param}.text", "is missing")
    return {"type": "text", "text": block.text, **_mark(block)}


def _call(block: Block, param: str) -> Json:
    if not block.id or not block.name:
        raise wrong(param, "is a tool_use, which must have an id and a name")
    return {
        "id": block.id,
        "type": "function",
        "function": {"name": block.name, "arguments": block.input or {}},
        **_mark(block),
    }


def _tool_message(block: Block, param: str) -> Json:
    if not block.tool_use_id:
        raise wrong(f"{param}.tool_use_id", "is missing: it names the call that this answers")
    content = block.content or ""
    parts = (
        [_text_part(part, f"{param}.content[{index}]") for index, part in enumerate(content)]
        if isinstance(content, list)
        else [{"type": "text", "text": content}]
    )
    if block.is_error:
        parts.insert(0, {"type": "text", "text": ERROR_MARK})
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": parts, **_mark(block)}


def _tool(tool: InputTool, param: str) -> Json:
    if tool.input_schema is None:
        if tool.type in (None, "custom"):
            raise wrong(f"{param}.input_schema", "is missing: it says what the tool takes")
        raise wrong(
            f"{param}.type",
            f"{tool.type!r} is a tool of Anthropic's own, which this server does not have; "
            f"describe it with name, description and input_schema, or leave it out",
        )
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": _present(function), **_mark(tool)}


def _tool_choice(choice: ToolChoice | None) -> str | Json | None:
    if choice is None:
        return None
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise wrong("tool_choice.name", "is missing: the type 'tool' needs the name of one")
    return {"type": "function", "function": {"name": choice.name}}


def _check_prefill(turn: Turn, message: Json) -> None:
    if "tool_calls" in message:
        raise wrong(
            turn.blocks[-1].param,
            "ends the conversation with a tool_use; send its tool_result in a user turn behind it",
        )


def _mark(carrier: Block | ResultBlock | InputTool) -> Json:
    return {} if carrier.cache_control is None else {"cache_control": carrier.cache_control}
