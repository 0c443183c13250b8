"""From the parts of an answer, as they come, to items and the events that tell of them.

One item is open at a time. It is closed by a part of another kind, or by the end: thoughts become a
reasoning item, words a message, each call an item of its own.
"""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import UNSET

from kokuban.core.request import FinishReason
from kokuban.core.step import SampledToken
from kokuban.engine.generation import TextDelta as Delta
from kokuban.server.openai_responses import LogprobItem
from kokuban.server.responses import events
from kokuban.server.responses.bodies import (
    CustomCallItem,
    FunctionCallItem,
    Item,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from kokuban.server.responses.events import Event
from kokuban.server.responses.messages import seal
from kokuban.server.responses.tools import Offered
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart

ToLogprob = Callable[[SampledToken], LogprobItem]


class _Open(Protocol):
    """An item that grows."""

    def item(self, status: ItemStatus) -> Item:
        """As it is now."""
        ...

    def begin(self) -> list[Event]:
        """What is told between its being added and its first piece."""
        ...

    def end(self) -> list[Event]:
        """What is told between its last piece and its being done."""
        ...


class _Message:
    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self._index = index
        self._pieces: list[str] = []
        self._logprobs: list[LogprobItem] = []

    def item(self, status: ItemStatus) -> Item:
        content = [self._part()] if status != "in_progress" or self._pieces else []
        return MessageItem(id=self._id, status=status, content=content)

    def begin(self) -> list[Event]:
        part = OutputText(text="")
        return [events.PartAdded(item_id=self._id, output_index=self._index, part=part)]

    def add(self, text: str, logprobs: list[LogprobItem]) -> list[Event]:
        self._pieces.append(text)
        self._logprobs += logprobs
        return [
            events.TextDelta(
                item_id=self._id, output_index=self._index, delta=text, logprobs=logprobs
            )
        ]

    def end(self) -> list[Event]:
        part = self._part()
        return [
            events.TextDone(
                item_id=self._id, output_index=self._index, text=part.text, logprobs=part.logprobs
            ),
            events.PartDone(item_id=self._id, output_index=self._index, part=part),
        ]

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._pieces), logprobs=list(self._logprobs))


class _Reasoning:
    def __init__(self, item_id: str, index: int, *, sealed: bool) -> None:
        self._id = item_id
        self._index = index
        self._sealed = sealed
        self._pieces: list[str] = []

    def item(self, status: ItemStatus) -> Item:
        is_done = status != "in_progress"
        return ReasoningItem(
            id=self._id,
            status=status,
            content=[ReasoningText("".join(self._pieces))] if is_done or self._pieces else [],
            encrypted_content=seal("".join(self._pieces)) if self._sealed and is_done else UNSET,
        )

    def begin(self) -> list[Event]:
        part = ReasoningText("")
        return [events.PartAdded(item_id=self._id, output_index=self._index, part=part)]

    def add(self, text: str) -> list[Event]:
        self._pieces.append(text)
        return [events.ReasoningDelta(item_id=self._id, output_index=self._index, delta=text)]

    def end(self) -> list[Event]:
        part = ReasoningText("".join(self._pieces))
        return [
            events.ReasoningDone(item_id=self._id, output_index=self._index, text=part.text),
            events.PartDone(item_id=self._id, output_index=self._index, part=part),
        ]


class _Call:
    def __init__(self, item_id: str, call_id: str, index: int, offered: Offered) -> None:
        self._id = item_id
        self._call_id = call_id
        self._index = index
        self._offered = offered
        self._pieces: list[str] = []

    def item(self, status: ItemStatus) -> Item:
        return FunctionCallItem(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._offered.name,
            arguments="".join(self._pieces),
            namespace=self._offered.namespace or UNSET,
        )

    def begin(self) -> list[Event]:
        return []

    def add(self, arguments: str) -> list[Event]:
        self._pieces.append(arguments)
        if not arguments:
            return []
        return [events.ArgumentsDelta(item_id=self._id, output_index=self._index, delta=arguments)]

    def end(self) -> list[Event]:
        return [
            events.ArgumentsDone(
                item_id=self._id,
                output_index=self._index,
                name=self._offered.name,
                arguments="".join(self._pieces),
            )
        ]


class _CustomCall(_Call):
    """A call of a tool that takes a text, which is told at the end, when its JSON is complete."""

    def item(self, status: ItemStatus) -> Item:
        return CustomCallItem(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._offered.name,
            input=self._input() if status != "in_progress" else "",
            namespace=self._offered.namespace or UNSET,
        )

    def add(self, arguments: str) -> list[Event]:
        self._pieces.append(arguments)
        return []

    def end(self) -> list[Event]:
        text = self._input()
        told: list[Event] = []
        if text:
            told.append(events.InputDelta(item_id=self._id, output_index=self._index, delta=text))
        told.append(events.InputDone(item_id=self._id, output_index=self._index, input=text))
        return told

    def _input(self) -> str:
        """The text inside the arguments; what the model wrote where that is no such object."""
        arguments = "".join(self._pieces)
        try:
            given = json.loads(arguments)["input"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return arguments
        return given if isinstance(given, str) else arguments


class Assembly:
    """Puts the items of one answer together.

    Args:
        answer_id: what its items' ids are made of.
        offered: the tools, by the name that the model knows.
        to_logprob: for the tokens of words; None: logprobs were not asked for.
        end_token_ids: tokens that say nothing.
        seal: whether thoughts are sent in a form that clients send back.
    """

    def __init__(
        self,
        answer_id: str,
        offered: dict[str, Offered],
        *,
        to_logprob: ToLogprob | None,
        end_token_ids: Collection[int],
        seal: bool,
    ) -> None:
        self.finish: FinishReason | None = None
        self.reasoning_tokens = 0
        self._answer_id = answer_id
        self._offered = offered
        self._to_logprob = to_logprob
        self._end_token_ids = end_token_ids
        self._seal = seal
        self._done: list[Item] = []
        self._open: _Open | None = None
        self._blanks = ""
        """In front of words that have not come yet."""

        self._pending: list[SampledToken] = []
        """Tokens whose text has not come yet."""

    def items(self) -> list[Item]:
        """All of them, the open one as it is now."""
        return [*self._done, self._open.item("in_progress")] if self._open else list(self._done)

    def feed(self, delta: Delta) -> list[Event]:
        """What a delta changes."""
        told: list[Event] = []
        self._pending += delta.tokens
        for part in delta.parts:
            told += self._take(part)
        if delta.finish is not None:
            self.finish = delta.finish
            if isinstance(self._open, _Reasoning):
                self.reasoning_tokens += len(self._pending)
            told += self._last_words()
            is_whole = delta.finish is FinishReason.STOP
            told += self._close("completed" if is_whole else "incomplete")
        return told

    def cut(self) -> list[Event]:
        """End before the answer is whole."""
        return self._close("incomplete")

    def _take(self, part: Part) -> list[Event]:
        tokens, self._pending = self._pending, []
        if isinstance(part, ReasoningPart):
            self.reasoning_tokens += len(tokens)
            told, thoughts = self._thoughts()
            return told + thoughts.add(part.text)
        if isinstance(part, CallPart):
            return self._call(part)
        if not isinstance(self._open, _Message) and not (self._blanks + part.text).strip():
            self._blanks += part.text
            self._pending = tokens
            return []
        return self._say(part, tokens)

    def _say(self, part: TextPart, tokens: Sequence[SampledToken]) -> list[Event]:
        text = self._blanks + part.text
        told, message = self._message()
        return told + message.add(text, self._logprobs(tokens))

    def _last_words(self) -> list[Event]:
        """An answer says something, be it nothing."""
        if self._open is not None or self._done:
            return []
        blanks = self._blanks
        told, message = self._message()
        return told + message.add(blanks, self._logprobs(self._pending)) if blanks else told

    def _thoughts(self) -> tuple[list[Event], _Reasoning]:
        if isinstance(self._open, _Reasoning):
            return [], self._open
        closed = self._close("completed")
        opened = _Reasoning(self._id("rs"), len(self._done), sealed=self._seal)
        return closed + self._begin(opened), opened

    def _message(self) -> tuple[list[Event], _Message]:
        if isinstance(self._open, _Message):
            return [], self._open
        closed = self._close("completed")
        opened = _Message(self._id("msg"), len(self._done))
        return closed + self._begin(opened), opened

    def _call(self, part: CallPart) -> list[Event]:
        if part.name is None:
            assert isinstance(self._open, _Call), "arguments of a call that has not begun"
            return self._open.add(part.arguments)
        told = self._close("completed")
        offered = self._offered.get(part.name, Offered(part.name))
        kind, prefix = (_CustomCall, "ctc") if offered.is_custom else (_Call, "fc")
        opened = kind(self._id(prefix), self._id("call"), len(self._done), offered)
        return told + self._begin(opened) + opened.add(part.arguments)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._answer_id}{len(self._done):04x}"

    def _begin(self, opened: _Open) -> list[Event]:
        self._open = opened
        self._blanks = ""
        added = events.ItemAdded(output_index=len(self._done), item=opened.item("in_progress"))
        return [added, *opened.begin()]

    def _close(self, status: ItemStatus) -> list[Event]:
        closed = self._open
        if closed is None:
            return []
        told = closed.end()
        item = closed.item(status)
        told.append(events.ItemDone(output_index=len(self._done), item=item))
        self._open = None
        self._done.append(item)
        return told

    def _logprobs(self, tokens: Sequence[SampledToken]) -> list[LogprobItem]:
        if self._to_logprob is None:
            return []
        said = (token for token in tokens if token.token_id not in self._end_token_ids)
        return [self._to_logprob(token) for token in said]
