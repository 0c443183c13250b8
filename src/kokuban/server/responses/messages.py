"""From items to the messages that chat templates know.

The items of one answer (thoughts, words, calls) become one message again, as the model said them,
so that the next turn's prompt begins with the tokens of this one.
"""

import base64
import json
from collections.abc import Iterable
from typing import Any

from kokuban.server.raw_json import json_object
from kokuban.server.responses.items import ItemDict
from kokuban.server.responses.tools import model_name

MessageDict = dict[str, Any]

_SEALED = "kokuban1."
"""Begins an `encrypted_content` that this server made. It is no secret: `content` says the same."""


def seal(thoughts: str) -> str:
    """Thoughts in a form that clients send back without looking into it."""
    return _SEALED + base64.b64encode(thoughts.encode("utf-8", "replace")).decode()


def unseal(sealed: str) -> str:
    """The opposite; "" for what another server has sealed."""
    if not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
    except ValueError:  # Also what is no base64, and no ASCII at all.
        return ""


def to_messages(instructions: str | None, items: Iterable[ItemDict]) -> list[MessageDict]:
    """The messages of a conversation.

    Args:
        instructions: come first, as a system message.
        items: checked, and none of them a reference.
    """
    writer = _Writer()
    if instructions:
        writer.messages.append({"role": "system", "content": instructions})
    for item in items:
        writer.write(item)
    return _merge_heads(writer.messages)


class _Writer:
    """Writes messages one item at a time."""

    def __init__(self) -> None:
        self.messages: list[MessageDict] = []
        self._thoughts = ""
        self._answer: MessageDict | None = None
        """The assistant's message that calls may still be added to."""

    def write(self, item: ItemDict) -> None:
        match item["type"]:
            case "reasoning":
                self._answer = None
                self._thoughts += _thoughts(item)
            case "function_call":
                if item.get("status") != "incomplete":  # Cut off, it is no JSON.
                    self._call(item, _arguments(item["arguments"]))
            case "custom_tool_call":
                self._call(item, json.dumps({"input": item["input"]}, ensure_ascii=False))
            case "function_call_output" | "custom_tool_call_output":
                content = _content(item["output"])
                self._add({"role": "tool", "tool_call_id": item["call_id"], "content": content})
            case "message" if item["role"] == "assistant":
                self._answer = self._said(_content(item["content"]))
            case _:
                self._add({"role": item["role"], "content": _content(item["content"])})

    def _add(self, message: MessageDict) -> None:
        self._answer = None
        self._thoughts = ""
        self.messages.append(message)

    def _said(self, content: Any) -> MessageDict:
        message: MessageDict = {"role": "assistant", "content": content}
        if self._thoughts:
            message["reasoning_content"] = self._thoughts
        self._add(message)
        return message

    def _call(self, item: ItemDict, arguments: str) -> None:
        if self._answer is None:
            self._answer = self._said("")
        call = {
            "id": item["call_id"],
            "type": "function",
            "function": {
                "name": model_name(item["name"], item.get("namespace")),
                "arguments": arguments,
            },
        }
        self._answer.setdefault("tool_calls", []).append(call)


def _arguments(written: str) -> str:
    """What the model wrote; none where that is no object, which no template could write again: the
    conversation goes on, and the result says what was wrong."""
    return "{}" if json_object(written) is None else written


def _content(given: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text where that is enough; parts where a mark or a boundary would be lost."""
    if isinstance(given, str):
        return given
    parts = [_part(part) for part in given]
    if not parts:
        return ""
    is_plain = len(parts) == 1 and parts[0].keys() == {"type", "text"}
    return parts[0]["text"] if is_plain else parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    text = part["refusal"] if part["type"] == "refusal" else part["text"]
    marks = ("prompt_cache_breakpoint", "cache_control")
    return {"type": "text", "text": text} | {key: part[key] for key in marks if part.get(key)}


def _thoughts(item: ItemDict) -> str:
    """What was thought, in the fullest form that there is."""
    if content := item.get("content"):
        return "".join(part.get("text") or "" for part in content)
    if sealed := item.get("encrypted_content"):
        return unseal(sealed)
    return "\n".join(part.get("text") or "" for part in item.get("summary") or ())


def _merge_heads(messages: list[MessageDict]) -> list[MessageDict]:
    """One system message instead of several at the head: many templates know only the first."""
    num_heads = 0
    for message in messages:
        if message["role"] not in ("system", "developer"):
            break
        num_heads += 1
    heads = messages[:num_heads]
    if num_heads < 2 or any(not isinstance(head["content"], str) for head in heads):
        return messages
    text = "\n\n".join(head["content"] for head in heads)
    return [{"role": heads[0]["role"], "content": text}, *messages[num_heads:]]
