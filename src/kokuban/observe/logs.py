"""How log lines look: one event, one line, whatever the values in it hold.

The library only asks for `logging.getLogger(__name__)`. A program calls `set_up_logging` once. What
an event tells machines stands in its `extra`, as `facts`; only the JSON form shows them.
"""

import json
import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from kokuban.core.errors import KokubanError

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_OWN_TEXT = (AssertionError, KokubanError, MemoryError, OSError)
"""Errors whose text is ours or the system's. That of others may hold a piece of a prompt."""

ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


def one_line(text: str) -> str:
    r"""Write control characters and line separators as escapes such as \x0a."""
    return _CONTROL.sub(
        lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text
    )


def traceback_of(error: BaseException | None, *, with_texts: bool = False) -> str:
    """Where an error came from, and what led to it.

    Args:
        with_texts: whether the text of every error is shown, not only where it is surely no user's.
    """
    parts: list[str] = []
    while error is not None and len(parts) < 10:
        name = type(error).__name__
        shown = with_texts or isinstance(error, _OWN_TEXT)
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"{frames}{name}: {error}" if shown else f"{frames}{name}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\nafter:\n\n".join(parts)


class OneLineFormatter(logging.Formatter):
    """Keeps a message on its line, so that no client can write lines of its own into the log.

    A traceback keeps its lines: it comes from our code.

    Args:
        with_texts: see `traceback_of`.
    """

    def __init__(self, form: str = FORMAT, *, with_texts: bool = False) -> None:
        super().__init__(form)
        self._with_texts = with_texts

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ErrorInfo) -> str:  # logging's own name
        return traceback_of(ei[1], with_texts=self._with_texts)


class JsonFormatter(OneLineFormatter):
    """An event as a JSON object on one line, traceback included."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        found.update(getattr(record, "facts", {}))
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def form_in_use() -> str:
    """The form that `set_up_logging` was last told, for a process that logs beside this one."""
    handlers = logging.getLogger("kokuban").handlers
    return "json" if any(isinstance(h.formatter, JsonFormatter) for h in handlers) else "text"


def set_up_logging(
    level: str, stream: TextIO | None = None, *, form: str = "text", with_texts: bool = False
) -> None:
    """Send the records of `kokuban` and of the HTTP server to a stream.

    Calling it again replaces what the last call did.

    Args:
        level: a name of `logging`, such as INFO.
        stream: standard error by default.
        form: "text" or "json".
        with_texts: see `traceback_of`.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    kind = JsonFormatter if form == "json" else OneLineFormatter
    handler.setFormatter(kind(with_texts=with_texts))
    for name, lowest in (("kokuban", level), ("uvicorn", "WARNING"), ("asyncio", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
