"""The shape of a response, whole and streamed; see `answer.Form`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw

from kokuban.core.request import FinishReason
from kokuban.engine.generation import TextDelta
from kokuban.server.chat import logprob_item
from kokuban.server.errors import Failure
from kokuban.server.record import Record
from kokuban.server.responses import events
from kokuban.server.responses.assembly import Assembly
from kokuban.server.responses.bodies import (
    FINAL,
    FailureCode,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ReasoningEcho,
    ResponseBody,
    ResponseFailure,
    ResponseUsage,
    Status,
    encode_body,
    encode_given,
)
from kokuban.server.responses.events import Event
from kokuban.server.responses.prepare import Ask
from kokuban.server.responses.request import ENCRYPTED, LOGPROBS
from kokuban.server.responses.store import Entry, Node, ResponseStore, new_node
from kokuban.server.serving import Serving

_ENDS: dict[Status, type[events.Completed | events.Incomplete | events.Failed]] = {
    "completed": events.Completed,
    "incomplete": events.Incomplete,
    "cancelled": events.Incomplete,
    "failed": events.Failed,
}
"""There is no event of its own for what was cancelled; the status tells it."""


@dataclass(frozen=True, slots=True)
class _Echo:
    """What the client chose, as JSON. Encoded once: it is sent up to four times."""

    text: Raw
    tool_choice: Raw
    tools: Raw
    reasoning: ReasoningEcho

    @classmethod
    def of(cls, ask: Ask) -> "_Echo":
        body = ask.body
        options = body.text.model_dump(by_alias=True, exclude_unset=True) if body.text else {}
        text = {"format": options.get("format") or {"type": "text"}}
        if verbosity := options.get("verbosity"):
            text["verbosity"] = verbosity
        reasoning = ReasoningEcho()
        if body.reasoning is not None:
            reasoning = ReasoningEcho(body.reasoning.effort, body.reasoning.summary)
        return cls(
            Raw(encode_given(text)),
            Raw(encode_given(body.tool_choice or "auto")),
            Raw(encode_given(ask.toolbox.shown)),
            reasoning,
        )


class ResponseForm:
    """One response, from the request to the end.

    Args:
        serving: whose model answers.
        ask: what it answers.
        record: counts the tokens.
        store: where it is kept once it has ended, unless the client does not want it.
        tenant: whose it is.
    """

    def __init__(
        self, serving: Serving, ask: Ask, record: Record, store: ResponseStore, tenant: str
    ) -> None:
        body = ask.body
        tokenizer, num_top = serving.model.tokenizer, body.top_logprobs or 0
        self.id = f"resp_{record.request_id}"
        self.status: Status = "queued" if body.background else "in_progress"
        self._body = body
        self._model = serving.info.model
        self._previous = ask.previous
        self._inputs = ask.items
        self._echo = _Echo.of(ask)
        self._record = record
        self._store = store
        self._tenant = tenant
        self._created = int(time.time())
        self._completed: int | None = None
        self._error: ResponseFailure | None = None
        self._assembly = Assembly(
            record.request_id,
            ask.toolbox.offered,
            to_logprob=(lambda token: logprob_item(tokenizer, token, num_top))
            if body.wants(LOGPROBS)
            else None,
            end_token_ids=() if body.ignore_eos else serving.model.end_token_ids,
            seal=body.wants(ENCRYPTED),
        )
        self._final = b""
        self._next = 0

    def add(self, delta: TextDelta) -> None:
        self.status = "in_progress"
        self._assembly.feed(delta)

    def body(self) -> bytes:
        self.finish()
        self._keep()
        return self.as_json()

    def opening(self) -> bytes:
        return b"".join(self.first_frames())

    def events(self, delta: TextDelta) -> bytes:
        return b"".join(self.frames(delta))

    def closing(self) -> bytes:
        frames = self.finish()
        self._keep()
        return b"".join(frames)

    def failed(self, failure: Failure) -> bytes:
        return b"".join(self.fail(failure))

    def first_frames(self) -> list[bytes]:
        """The events before all others, each alone."""
        snapshot = Raw(self.as_json())
        kind = events.Queued if self._body.background else events.InProgress
        return self._write([events.Created(response=snapshot), kind(response=snapshot)])

    def frames(self, delta: TextDelta) -> list[bytes]:
        """The events of a delta, each alone."""
        told: list[Event] = []
        if self.status == "queued":
            self.status = "in_progress"
            told.append(events.InProgress(response=Raw(self.as_json())))
        return self._write([*told, *self._assembly.feed(delta)])

    def finish(self) -> list[bytes]:
        """End with what came, after the last delta."""
        is_whole = self._assembly.finish is FinishReason.STOP
        self._completed = int(time.time()) if is_whole else None
        return self._end("completed" if is_whole else "incomplete")

    def fail(self, failure: Failure) -> list[bytes]:
        """End because something went wrong."""
        self._error = ResponseFailure(_error_code(failure.status), failure.body.message)
        return self._end("failed")

    def cancel(self) -> list[bytes]:
        """End because nobody wants it any more."""
        return self._end("cancelled")

    def as_json(self) -> bytes:
        """The response, as it is now."""
        return self._final or bytes(encode_body(self._response()))

    def node(self) -> Node:
        """The turn of the conversation that this response is, as far as it has come."""
        items = self._assembly.items() if self.status in FINAL else []
        outputs = msgspec.json.encode(items) if items else b""
        ids = tuple(item.id for item in items)
        return new_node(self._previous, self._inputs, outputs, ids)

    def _end(self, status: Status) -> list[bytes]:
        frames = self._write(self._assembly.cut())
        self.status = status
        self._final = self.as_json()
        return frames + self._write([_ENDS[status](response=Raw(self._final))])

    def _write(self, told: Sequence[Event]) -> list[bytes]:
        for event in told:
            event.sequence_number = self._next
            self._next += 1
        return [events.write(event) for event in told]

    def _keep(self) -> None:
        """Before the client learns of the end: it may go on from there at once."""
        if self._body.wants_store:
            data = self.as_json()
            entry = Entry(
                id=self.id,
                tenant=self._tenant,
                node=self.node(),
                status=self.status,
                body=lambda: data,
                body_bytes=len(data),
            )
            self._store.put(entry)

    def _response(self) -> ResponseBody:
        body, echo = self._body, self._echo
        cut = IncompleteDetails("max_output_tokens") if self.status == "incomplete" else None
        return ResponseBody(
            id=self.id,
            created_at=self._created,
            completed_at=self._completed,
            status=self.status,
            background=bool(body.background),
            error=self._error,
            incomplete_details=cut,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=self._model,
            output=self._assembly.items(),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning=echo.reasoning,
            safety_identifier=body.safety_identifier,
            service_tier="default",
            store=body.wants_store and self._store.keeps_any,
            temperature=_or(body.temperature, 1.0),
            text=echo.text,
            tool_choice=echo.tool_choice,
            tools=echo.tools,
            top_logprobs=body.top_logprobs or 0,
            top_p=_or(body.top_p, 1.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            truncation=body.truncation or "disabled",
            usage=self._usage() if self.status in FINAL else UNSET,
            user=UNSET if body.user is None else body.user,
            metadata=body.metadata or {},
        )

    def _usage(self) -> ResponseUsage:
        usage = self._record.usage_body()
        details = usage.prompt_tokens_details
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(details.cached_tokens, details.cache_write_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputDetails(self._assembly.reasoning_tokens),
            total_tokens=usage.total_tokens,
            kokuban=usage.kokuban,
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _error_code(status: int) -> FailureCode:
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if status < 500 else "server_error"
