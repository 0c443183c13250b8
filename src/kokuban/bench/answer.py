"""What became of one request: an `Outcome`, filled while its stream comes in."""

from dataclasses import dataclass, field

import msgspec

from kokuban.bench.protocol import DECODER, DONE, StreamEvent, message_of, message_of_body
from kokuban.bench.wire import EventReader, ResponseReader

MAX_ERROR_BYTES = 4096
"""Of a body that is no stream: enough for what an error says."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One request. Times are seconds from the start of the run."""

    index: int
    arrival_s: float
    """When it was due, whether or not the client was there in time."""

    sent_s: float = 0.0
    end_s: float = 0.0
    """When the finish reason was read; without one, the last text; when a failure was noticed."""

    text_s: list[float] = field(default_factory=list)
    """When each event with text was read."""

    max_tokens: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """These three as the server's `usage` says; None where it does not."""

    finish: str | None = None
    error: str | None = None
    """Kind of failure, None for an answer. See `docs/bench.md`."""

    detail: str = ""

    @property
    def tokens(self) -> int:
        """Output tokens; without usage the events with text, which are as many or fewer."""
        return len(self.text_s) if self.output_tokens is None else self.output_tokens

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """None for an answer without any text."""
        return self.text_s[0] - self.arrival_s if self.text_s else None

    @property
    def tpot_s(self) -> float | None:
        """None for an answer of one token or without text."""
        if not self.text_s or self.tokens < 2:
            return None
        return (self.end_s - self.text_s[0]) / (self.tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        return [b - a for a, b in zip(self.text_s, self.text_s[1:], strict=False)]


class StreamTaker:
    """Takes the body of one answer as it comes.

    Args:
        zero_s: the start of the run on the clock of `take`.
    """

    def __init__(self, outcome: Outcome, zero_s: float) -> None:
        self._outcome = outcome
        self._zero_s = zero_s
        self._events = EventReader()
        self._head = bytearray()
        self._done = False

    def take(self, body: bytes, now_s: float) -> None:
        """A piece of the body, and when it was read."""
        if len(self._head) < MAX_ERROR_BYTES:
            self._head += body[: MAX_ERROR_BYTES - len(self._head)]
        for data in self._events.feed(body):
            if data == DONE:
                self._done = True
            elif not self._done:
                self._take_event(data, now_s - self._zero_s)

    def finish(self, response: ResponseReader) -> None:
        """The answer is whole: was it one?"""
        outcome = self._outcome
        if response.status != 200:
            self._fail(f"http_{response.status}", message_of_body(bytes(self._head)))
        elif not response.headers.get("content-type", "").startswith("text/event-stream"):
            self._fail("no_stream", message_of_body(bytes(self._head)))
        elif not self._done and outcome.finish is None:
            self._fail("cut", "the stream ended without a finish reason and without [DONE]")
        elif not outcome.text_s and not outcome.output_tokens:
            self._fail("empty", "the stream ended without any token")

    def _take_event(self, data: bytes, now_s: float) -> None:
        try:
            event = DECODER.decode(data)
        except msgspec.DecodeError as error:
            self._fail("bad_event", f"{error}: {message_of(data[:80].decode('utf-8', 'replace'))}")
            return
        if event.error is not None:
            self._fail("error_event", message_of(event.error))
        self._take_usage(event)
        outcome = self._outcome
        for choice in event.choices:
            if choice.says_something:
                outcome.text_s.append(now_s)
                outcome.end_s = now_s
            if choice.finish_reason is not None:
                outcome.finish = choice.finish_reason
                outcome.end_s = now_s

    def _take_usage(self, event: StreamEvent) -> None:
        """The last usage of a stream is the whole one."""
        usage, outcome = event.usage, self._outcome
        if usage is None:
            return
        outcome.prompt_tokens, outcome.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _fail(self, kind: str, detail: str) -> None:
        """The first failure of an answer is its reason."""
        if self._outcome.error is None:
            self._outcome.error, self._outcome.detail = kind, detail
