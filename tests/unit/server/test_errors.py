"""The table from errors to HTTP."""

import pytest
from starlette.exceptions import HTTPException

from kokuban.core import errors
from kokuban.server.errors import RULES, HttpError, failure


def test_every_class_stands_before_the_class_it_is_derived_from() -> None:
    for index, rule in enumerate(RULES):
        for later in RULES[index + 1 :]:
            assert not issubclass(later.error, rule.error)


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (errors.UnknownModel("a", "b"), 404, "invalid_request_error", "model", "model_not_found"),
        (
            errors.PromptTooLong(9, 8),
            400,
            "invalid_request_error",
            "messages",
            "context_length_exceeded",
        ),
        (
            errors.TemplateError("no", param="messages"),
            400,
            "invalid_request_error",
            "messages",
            "invalid_value",
        ),
        (errors.Overloaded("full"), 429, "rate_limit_error", None, "queue_full"),
        (errors.ShuttingDown("bye"), 503, "service_unavailable_error", None, "shutting_down"),
        (errors.StepFailed("nan"), 500, "server_error", None, "engine_error"),
        (HttpError(413, "big", code="c"), 413, "invalid_request_error", None, "c"),
        (HTTPException(418, "tea"), 418, "invalid_request_error", None, "http_error"),
        (KeyError("secret"), 500, "server_error", None, "internal_error"),
        (errors.OutOfBlocks("inside"), 500, "server_error", None, "internal_error"),
    ],
)
def test_each_error_has_its_status_and_words(
    error: Exception, status: int, kind: str, param: str | None, code: str | None
) -> None:
    found = failure(error)

    assert (found.status, found.body.type) == (status, kind)
    assert (found.body.param, found.body.code) == (param, code)


def test_the_text_of_a_fault_of_ours_stays_inside() -> None:
    assert b"secret" not in failure(KeyError("secret")).encode()
    assert b"inside" not in failure(errors.OutOfBlocks("inside")).encode()


def test_the_time_to_come_back_is_told() -> None:
    assert failure(errors.Overloaded("full", retry_after_s=7)).headers == {"retry-after": "7"}
