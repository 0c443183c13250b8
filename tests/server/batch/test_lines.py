"""What a line of a batch may be, and what is said of one that is nothing."""

import json
from typing import Any

import pytest

from kokuban.server.batch.lines import BadLine, parse_line

DEEP = b'{"custom_id": "a", "body": %s%s}' % (b"[" * 20_000, b"]" * 20_000)
GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"x": [1, 2.50]}}


def test_a_good_line_keeps_its_body_as_it_is() -> None:
    request = parse_line(
        1, b'{"custom_id":"a","method":"POST","url":"/v1/messages","body":{"x": 1.0 }}'
    )

    assert (request.custom_id, request.url) == ("a", "/v1/messages")
    assert bytes(request.body) == b'{"x": 1.0 }'


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"method": "GET"}, "invalid_method", "'GET'"),
        ({"url": "/v1/models"}, "invalid_url", "/v1/chat/completions"),
        ({"url": "/v1/completions/"}, "invalid_url", "'/v1/completions/'"),
        ({"url": 1}, "invalid_line", "url"),
        ({"body": {"stream": True}}, "invalid_request", "stream"),
        ({"body": {"background": True}}, "invalid_request", "background"),
        ({"body": "text"}, "invalid_line", "object"),
        ({"body": None}, "invalid_line", "object"),
    ],
)
def test_what_cannot_be_sent_is_told_with_its_name(
    change: dict[str, Any], code: str, message: str
) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(7, json.dumps({**GOOD, **change}).encode())

    result = caught.value.result
    assert result.error is not None
    assert (result.custom_id, result.error.code, result.error.line) == ("a", code, 7)
    assert result.error.message.startswith("line 7: ")
    assert message in result.error.message
    assert not result.succeeded


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b'"x"', b"\xff", b'{"custom_id": 1}', b'{"custom_id": ""}', b"{}", DEEP, None],
)
def test_what_has_no_name_is_told_by_its_number(raw: bytes | None) -> None:
    with pytest.raises(BadLine) as caught:
        parse_line(3, raw)

    result = caught.value.result
    assert result.custom_id is None
    assert result.error is not None
    assert result.error.line == 3


def test_an_empty_name_is_none() -> None:
    with pytest.raises(BadLine, match="custom_id is empty"):
        parse_line(1, json.dumps({**GOOD, "custom_id": ""}).encode())


def test_fields_that_are_false_or_unknown_do_not_matter() -> None:
    line = {**GOOD, "body": {"stream": False, "background": None, "z": 1}, "z": 1}

    assert parse_line(1, json.dumps(line).encode()).custom_id == "a"
