"""Anthropic's shape of an answer: blocks of words, thoughts and tool calls; see `answer.Form`.

A block ends where a part of another kind, or another call, begins. In a stream it is opened by its
first part and closed by what comes next. An answer without a word has one empty block of text:
clients look at the first one.
"""

from collections.abc import Iterator

from msgspec import structs

from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.generation import TextDelta
from kokuban.server.errors import Failure
from kokuban.server.messages.answers import (
    PING,
    SIGNATURE,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputBlock,
    SignaturePiece,
    Stop,
    Tagged,
    event,
    named,
)
from kokuban.server.messages.blocks import OpenBlock, piece_of
from kokuban.server.messages.errors import envelope
from kokuban.server.openai_responses import encode
from kokuban.server.record import Record
from kokuban.server.serving import Serving
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart

_NOTHING = TextPart("")


class MessagesForm:
    """One answer, whole or streamed.

    Args:
        serving, record, params: the model that answers, the counts, what was asked.
        keeps: the request has marks; without any, what the cache takes is not told, as theirs
            takes nothing then.
    """

    def __init__(
        self, serving: Serving, record: Record, params: SamplingParams, *, keeps: bool = False
    ) -> None:
        self._id = f"msg_{record.request_id}"
        self._model = serving.info.model
        self._record = record
        self._max_tokens = params.max_tokens
        self._keeps = keeps
        self._blocks: list[OpenBlock] = []
        self._last: TextDelta | None = None

    def add(self, delta: TextDelta) -> None:
        self._last = delta
        for part in delta.parts:
            if self._begins(part):
                self._open(part)
            self._blocks[-1].keep(part)

    def body(self) -> bytes:
        if not self._blocks:
            self._open(_NOTHING)
        content = [block.whole() for block in self._blocks]
        return encode(self._answer(content, self._stop()))

    def opening(self) -> bytes:
        start = self._answer([], Stop())
        nothing_said = structs.replace(start.usage, output_tokens=0)
        return event(MessageStart(message=structs.replace(start, usage=nothing_said))) + PING

    def events(self, delta: TextDelta) -> bytes:
        self._last = delta
        return b"".join(map(event, self._events(delta)))

    def closing(self) -> bytes:
        wordless = () if self._blocks else (self._open(_NOTHING),)
        ended = MessageDelta(delta=self._stop(), usage=self._usage())
        return b"".join(map(event, (*wordless, *self._block_end(), ended, MessageStop())))

    def failed(self, failure: Failure) -> bytes:
        error = envelope(failure, self._record.shown_id)
        return b"".join(map(event, self._block_end())) + named("error", error)

    def _begins(self, part: Part) -> bool:
        return not self._blocks or not self._blocks[-1].goes_on(part)

    def _open(self, part: Part) -> BlockStart:
        block = OpenBlock(part, self._record.request_id)
        self._blocks.append(block)
        return BlockStart(index=len(self._blocks) - 1, content_block=block.empty())

    def _events(self, delta: TextDelta) -> Iterator[Tagged]:
        for part in delta.parts:
            if self._begins(part):
                yield from self._block_end()
                yield self._open(part)
            if isinstance(part, CallPart):  # For `_stop`.
                self._blocks[-1].keep(part)
            if piece := piece_of(part):
                yield BlockDelta(index=len(self._blocks) - 1, delta=piece)

    def _block_end(self) -> Iterator[Tagged]:
        """The end of the block that is open, if one is."""
        if not self._blocks:
            return
        index = len(self._blocks) - 1
        if isinstance(self._blocks[-1].first, ReasoningPart):
            yield BlockDelta(index=index, delta=SignaturePiece(signature=SIGNATURE))
        yield BlockStop(index=index)

    def _answer(self, content: list[OutputBlock], stop: Stop) -> MessageAnswer:
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=self._usage(),
        )

    def _stop(self) -> Stop:
        """Why the answer ended."""
        last = self._last
        assert last is not None
        if last.finish is FinishReason.LENGTH:
            is_asked = self._record.output_tokens == self._max_tokens
            return Stop(stop_reason="max_tokens" if is_asked else "model_context_window_exceeded")
        calls = [block for block in self._blocks if isinstance(block.first, CallPart)]
        if isinstance(last.stop_reason, str) and not (calls and calls[-1].is_whole_call):
            return Stop(stop_reason="stop_sequence", stop_sequence=last.stop_reason)
        return Stop(stop_reason="tool_use" if calls else "end_turn")

    def _usage(self) -> MessageUsage:
        usage = self._record.usage_body()
        details = usage.prompt_tokens_details
        written = details.cache_write_tokens if self._keeps else 0
        return MessageUsage(
            input_tokens=usage.prompt_tokens - details.cached_tokens - written,
            cache_creation_input_tokens=written,
            cache_read_input_tokens=details.cached_tokens,
            output_tokens=usage.completion_tokens,
            kokuban=usage.kokuban,
        )
