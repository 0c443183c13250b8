"""Keeps the event loop free: what costs time runs in a worker thread, what costs too much is
refused before it is parsed.

A worker thread alone is not enough: parsing holds the interpreter lock in one piece, about 6 us for
an object and 0.3 us for a number. So the number of JSON values in a body has a limit, counted in
small steps between which the loop runs.
"""

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from kokuban.server.errors import HttpError

INLINE_BYTES = 8192
"""Larger texts are templated and tokenised in a worker thread: below it the hop costs more."""

INLINE_JSON_BYTES = 64 * 2**10
"""Larger bodies are parsed in a worker thread."""

MAX_VALUES = 2**20
"""Commas outside of texts in one body: token ids, strings and fields together."""

MAX_CONTAINERS = 2**15
"""Objects and lists in one body: messages, their parts, tools and what is inside them."""

_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.){0,65535}+', re.DOTALL)

Result = TypeVar("Result")


async def off_loop(
    work: Callable[[], Result], num_bytes: int, inline: int = INLINE_BYTES
) -> Result:
    """What `work` returns; in a worker thread when it has more than `inline` bytes to go through.

    Args:
        work: touches nothing that belongs to the loop.
        num_bytes: of everything that `work` reads, all rows together.
        inline: up to here it runs on the loop.
    """
    return work() if num_bytes <= inline else await asyncio.to_thread(work)


def check_values(raw: bytes) -> None:
    """Refuse a JSON text of too many values, before it is parsed. What is no JSON passes.

    Raises:
        HttpError: 413, with both limits.
    """
    if _fits(raw.count(b","), raw.count(b"{") + raw.count(b"[")):
        return  # Even with those that stand in texts.
    commas = containers = position = 0
    while True:
        quote = raw.find(b'"', position)
        end = len(raw) if quote < 0 else quote
        commas += raw.count(b",", position, end)
        containers += raw.count(b"{", position, end) + raw.count(b"[", position, end)
        if not _fits(commas, containers):
            raise HttpError(
                413,
                f"the body has more than {MAX_VALUES} values, or more than {MAX_CONTAINERS} "
                f"objects and lists; join texts, or send several requests",
                code="body_too_large",
            )
        if quote < 0:
            return
        position = _after_string(raw, quote + 1)


def _fits(commas: int, containers: int) -> bool:
    return commas <= MAX_VALUES and containers <= MAX_CONTAINERS


def _after_string(raw: bytes, position: int) -> int:
    """The position after the closing quote; the end where there is none."""
    while position < len(raw):
        found = _IN_STRING.match(raw, position)
        if found is None or found.end() == position:  # At a quote, or at a last backslash.
            return position + 1
        position = found.end()
    return position
