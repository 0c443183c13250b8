"""How log lines look: one event, one line, whatever the values in it hold.

The library only asks for `logging.getLogger(__name__)`. A program calls `set_up_logging` once.
"""

import logging
import re
import sys
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def one_line(text: str) -> str:
    r"""Write control characters and line separators as escapes such as \x0a."""
    return _CONTROL.sub(
        lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text
    )


class OneLineFormatter(logging.Formatter):
    """Keeps a message on its line, so that no client can write lines of its own into the log.

    A traceback keeps its lines: it comes from our code.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        record.message = one_line(record.message)
        return super().formatMessage(record)


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the records of `kokuban` and of the HTTP server to a stream.

    Calling it again replaces what the last call did.

    Args:
        level: a name of `logging`, such as INFO.
        stream: standard error by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLineFormatter(FORMAT))
    for name, lowest in (("kokuban", level), ("uvicorn", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(lowest)
        logger.propagate = False
