"""Streams become outcomes: texts with their times, usage, and a reason for each failure."""

import json
from typing import Any

import pytest

from kokuban.bench.answer import Outcome, StreamTaker
from kokuban.bench.wire import ResponseReader

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}


def sse(*events: Any) -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in events)
    return b"".join(f"data: {text}\n\n".encode() for text in texts)


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": content, "finish_reason": finish}]}


def taken(
    *reads: tuple[float, bytes], status: int = 200, kind: str = "text/event-stream; charset=utf-8"
) -> Outcome:
    """The outcome of a body that was read in these pieces, at these times on a clock from 100."""
    outcome = Outcome(index=0, arrival_s=0.0)
    taker = StreamTaker(outcome, 100.0)
    response = ResponseReader()
    response.feed(f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n\r\n".encode())
    for time_s, body in reads:
        taker.take(body, 100.0 + time_s)
    taker.finish(response)
    return outcome


def test_text_has_the_time_at_which_it_was_read_and_a_role_is_no_text() -> None:
    found = taken(
        (1, sse(chat(role="assistant", content=""))),
        (2, sse(chat(content="a"))),
        (3, sse(chat(content="b"), chat(content="c"))),
        (4, sse(chat("length"))),
        (5, sse({"choices": [], "usage": USAGE}, "[DONE]")),
    )

    assert found.text_s == [2, 3, 3]
    assert (found.end_s, found.finish, found.error) == (4, "length", None)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (9, 4, 8)


def test_completions_thoughts_and_tool_calls_are_text_too() -> None:
    found = taken(
        (1, sse(text("a"))),
        (2, sse(chat(reasoning_content="hm"))),
        (3, sse(chat(reasoning="hm"))),
        (4, sse(chat(tool_calls=[{"index": 0}]))),
        (5, sse(text("", "stop"), "[DONE]")),
    )

    assert found.text_s == [1, 2, 3, 4]


def test_an_event_may_come_in_two_reads() -> None:
    whole = sse(chat(content="a"), chat("stop"), "[DONE]")

    found = taken((1, whole[:30]), (2, whole[30:]))

    assert (found.text_s, found.end_s) == ([2], 2)


def test_without_usage_tokens_are_events_with_text() -> None:
    found = taken((1, sse(chat(content="a"), chat(content="b"), chat("stop"), "[DONE]")))

    assert (found.output_tokens, found.cached_tokens, found.tokens) == (None, None, 2)


def test_usage_in_every_event_counts_once() -> None:
    early = {"prompt_tokens": 9, "completion_tokens": 1}

    found = taken((1, sse(chat(content="a") | {"usage": early}, chat("stop") | {"usage": USAGE})))

    assert (found.output_tokens, found.cached_tokens) == (4, 8)


def test_after_done_nothing_counts() -> None:
    found = taken((1, sse(chat("stop", content="a"), "[DONE]", chat(content="b"))))

    assert found.text_s == [1]


FINE = sse(chat("stop", content="a"), "[DONE]")


@pytest.mark.parametrize(
    ("found", "error", "detail"),
    [
        (taken((1, b'{"error": {"message": "too  many"}}'), status=429), "http_429", "too many"),
        (taken((1, b"<html>oops"), status=502), "http_502", "<html>oops"),
        (taken((1, b'{"choices": []}'), kind="application/json"), "no_stream", "{'choices': []}"),
        (taken((1, sse(chat(content="a")))), "cut", "without a finish reason"),
        (taken((1, sse("[DONE]"))), "empty", "without any token"),
        (taken((1, sse({"error": {"message": "boom"}}), )), "error_event", "boom"),
        (taken((1, sse("{no json"))), "bad_event", "{no json"),
        (taken((1, sse({"choices": 5}))), "bad_event", "Expected `array`"),
    ],
)  # fmt: skip
def test_a_failure_has_a_kind_and_says_what_was_said(
    found: Outcome, error: str, detail: str
) -> None:
    assert found.error == error
    assert detail in found.detail


def test_the_first_failure_of_an_answer_is_its_reason() -> None:
    found = taken((1, sse({"error": "first"}, "{no json")))

    assert (found.error, found.detail) == ("error_event", "first")


def test_an_answer_of_tokens_that_have_no_text_is_an_answer() -> None:
    found = taken((1, sse(chat("length"), {"choices": [], "usage": USAGE}, "[DONE]")))

    assert (found.error, found.ttft_s, found.tokens) == (None, None, 4)
