"""One event is one line, whatever the values hold."""

import io
import logging
from collections.abc import Iterator

import pytest

from kokuban.observe.logs import one_line, set_up_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("kokuban", "uvicorn")]
    before = [(log, list(log.handlers), log.level, log.propagate) for log in loggers]
    yield
    for log, handlers, level, propagate in before:
        log.handlers[:] = handlers
        log.setLevel(level)
        log.propagate = propagate


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", "a\\x0ab"),
        ("a\r\x1b[31m", "a\\x0d\\x1b[31m"),
        ("\u2028\u0085", "\\u2028\\x85"),
        ("黒板 é", "黒板 é"),
    ],
)
def test_what_would_begin_a_line_is_written_as_an_escape(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_client_cannot_write_lines_of_its_own() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", stream)

    logging.getLogger("kokuban.x").info("id=%s", "1\nINFO forged")

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("INFO    kokuban.x: id=1\\x0aINFO forged\n")


def test_levels_below_the_chosen_one_are_silent() -> None:
    stream = io.StringIO()
    set_up_logging("WARNING", stream)

    logging.getLogger("kokuban").info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    logging.getLogger("uvicorn.error").warning("loud")

    assert [line.split(": ")[1] for line in stream.getvalue().splitlines()] == ["loud"]


def test_setting_up_twice_writes_every_line_once() -> None:
    stream = io.StringIO()
    set_up_logging("INFO", stream)
    set_up_logging("INFO", stream)

    logging.getLogger("kokuban").warning("once")

    assert stream.getvalue().count("once") == 1
