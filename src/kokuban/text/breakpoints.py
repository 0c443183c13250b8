"""Finds which tokens of a prompt come before the end of a message, a part of it, or the tools.

No template says where a message ends. It is found by encoding conversations that are the same up to
there and differ after it: what their ids have in common with the prompt's ends there, to the token.

    the conversation up to this message         ends with the message; enough for most templates
    the same with a mark at the message's end   for templates that write a message into the next
                                                one, or the last message in another way
    a stranger's words after the tools          ends where the conversation begins

So what comes out is always a true beginning of the prompt, whatever a template does. Where one
hides what could be compared, it is too short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from kokuban.core.errors import RequestError
from kokuban.text.chat import ChatTemplate

_MARK = "\U00010737"
"""A code point of the Linear A block that is no letter of any text."""

_Message = Mapping[str, Any]


class Place(NamedTuple):
    """A place in a conversation: an end of something. Places sort as they stand in the prompt."""

    message: int
    """Index of the message; -1: the tools, which stand in front."""

    part: int | None = None
    """Index of the part of its content; None: the whole message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What became a prompt: see `ChatTemplate.encode_chat`."""

    template: ChatTemplate
    messages: Sequence[_Message]
    tools: Sequence[_Message] | None
    kwargs: Mapping[str, Any]
    prompt: Sequence[int]

    def num_tokens_before(self, place: Place) -> int:
        """How many of the prompt's tokens come before the end of what `place` names.

        At most two conversations are encoded, neither longer than this one by more than a mark.
        """
        if place.message < 0:
            return self._tools_end()
        messages, index = self.messages, place.message
        message = messages[index]
        is_whole = place.part is None or place.part == _num_parts(message) - 1
        ends_here = [*messages[:index], message if is_whole else _cut(message, place.part or 0)]
        common, is_all = self._common(ends_here)
        if is_whole and is_all and not _is_system(message):
            return common
        part = None if is_whole else place.part
        marked = [*messages[:index], _marked(message, part), *messages[index + 1 : index + 2]]
        end, is_blind = self._common(marked)
        return common if is_blind else max(common, end)

    def _tools_end(self) -> int:
        opening = list(takewhile(_is_system, self.messages))
        common, is_blind = self._common([*opening, {"role": "user", "content": _MARK}])
        return 0 if is_blind else common

    def _common(self, messages: Sequence[_Message]) -> tuple[int, bool]:
        """How many ids they have in common with the prompt, and whether those are all of theirs."""
        try:
            ids = self.template.encode_chat(
                messages, tools=self.tools, add_generation_prompt=False, kwargs=self.kwargs
            )
        except RequestError:  # The template does not take a conversation that ends here.
            return 0, False
        num_common = common_length(ids, self.prompt)
        return num_common, num_common == len(ids)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids stand at the beginning of both."""
    pairs = zip(first, second, strict=False)
    shorter = min(len(first), len(second))
    return next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)


def _is_system(message: _Message) -> bool:
    return message.get("role") in ("system", "developer")


def _num_parts(message: _Message) -> int:
    content = message.get("content")
    return len(content) if isinstance(content, list) else 1


def _cut(message: _Message, part: int) -> _Message:
    """The message as if it ended with this part."""
    content = message["content"][: part + 1]
    return {**message, "content": content, "tool_calls": None}


def _marked(message: _Message, part: int | None) -> _Message:
    """The message with a mark behind its content, or behind one part of it."""
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return {**message, "content": (content or "") + _MARK}
    parts = list(content)
    index = len(parts) - 1 if part is None else part
    item = parts[index]
    if isinstance(item, str):
        parts[index] = item + _MARK
    else:
        name = "refusal" if item.get("type") == "refusal" else "text"
        parts[index] = {**item, name: (item.get(name) or "") + _MARK}
    return {**message, "content": parts}
