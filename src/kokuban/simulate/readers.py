"""Reads traces: Mooncake JSONL, Azure CSV, agent sessions as JSON, and our own JSONL.

Which of them a file is, is seen from its beginning. docs/simulate.md describes ours.
"""

import csv
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from kokuban.core.errors import ConfigError
from kokuban.simulate.trace import Trace, TraceRequest, make_trace

OWN_MARK = "kokuban_trace"
"""Key of the first line of our own format; its value is the version."""

OWN_VERSION = 1
MOONCAKE_BLOCK_TOKENS = 512

_FORMATS = (
    "Mooncake JSONL (timestamp, input_length, output_length, hash_ids), Azure CSV (TIMESTAMP, "
    f"ContextTokens, GeneratedTokens), agent JSON (block_size, requests), or JSONL whose first "
    f'line has "{OWN_MARK}"'
)


def read_trace(path: Path) -> Trace:
    """Read a trace, or a folder of agent sessions.

    Raises:
        ConfigError: it cannot be read, is none of the known formats, or has a line that is wrong.
    """
    try:
        requests, block_tokens = _read(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error, RecursionError) as error:
        raise ConfigError(f"{path} is no trace: {error}") from error
    if not requests:
        raise ConfigError(f"{path} holds no request")
    return make_trace(path.name, block_tokens, requests)


def _read(path: Path) -> tuple[list[TraceRequest], int]:
    if path.is_dir():
        return _read_sessions(sorted(path.glob("*.json")), path)
    with path.open(encoding="utf-8") as file:
        beginning = file.readline().strip()
    if beginning.startswith("TIMESTAMP,"):
        return list(_azure(path)), 1
    if path.suffix == ".json":
        return _read_sessions([path], path)
    first = _object(beginning, f"{path}:1")
    if OWN_MARK in first:
        return _own(path, first)
    if "hash_ids" in first:
        return list(_mooncake(path)), MOONCAKE_BLOCK_TOKENS
    raise ConfigError(f"{path} is none of the traces that can be read: {_FORMATS}")


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    for place, row in _lines(path):
        yield TraceRequest(
            arrival_s=_number(row, "timestamp", place) / 1e3,
            prompt_tokens=_count(row, "input_length", place, least=1),
            output_tokens=max(1, _count(row, "output_length", place)),
            block_ids=_ids(row, "hash_ids", place),
        )


def _azure(path: Path) -> Iterator[TraceRequest]:
    start: datetime | None = None
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            place = f"{path}:{number}"
            try:
                # Seven digits of a second: one more than `datetime` keeps.
                time = datetime.fromisoformat((row["TIMESTAMP"] or "")[:26])
                prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{place} is no row of an Azure trace: {error}") from error
            start = start or time
            yield TraceRequest(
                arrival_s=(time - start).total_seconds(),
                prompt_tokens=max(1, prompt),
                output_tokens=max(1, output),
            )


def _read_sessions(paths: list[Path], origin: Path) -> tuple[list[TraceRequest], int]:
    """Agent sessions: names of blocks hold inside one session, and only full blocks have one."""
    requests: list[TraceRequest] = []
    block_tokens = 0
    for path in paths:
        session = _object(path.read_text(encoding="utf-8"), str(path))
        size = _count(session, "block_size", str(path), least=1)
        if block_tokens not in (0, size):
            raise ConfigError(f"{path} has blocks of {size} tokens, others of {block_tokens}")
        block_tokens = size
        rows = session.get("requests")
        if not isinstance(rows, list):
            raise ConfigError(f"{path} is none of the traces that can be read: {_FORMATS}")
        name = str(session.get("id", path.stem))
        requests += [_turn(row, name, f"{path}, request {i}") for i, row in enumerate(rows)]
    if not paths:
        raise ConfigError(f"{origin} holds no .json file")
    return requests, block_tokens


def _turn(row: Any, session: str, place: str) -> TraceRequest:
    if not isinstance(row, dict):
        raise ConfigError(f"{place} is no object")
    return TraceRequest(
        arrival_s=_number(row, "t", place),
        prompt_tokens=_count(row, "in", place, least=1),
        output_tokens=max(1, _count(row, "out", place)),
        block_ids=_ids(row, "hash_ids", place),
        scope=session,
        session=session,
        think_s=_number(row, "think_time", place) if "think_time" in row else 0.0,
    )


def _own(path: Path, head: dict[str, Any]) -> tuple[list[TraceRequest], int]:
    if head[OWN_MARK] != OWN_VERSION:
        raise ConfigError(f"{path} has version {head[OWN_MARK]} of our format, not {OWN_VERSION}")
    names: dict[str, int] = {}
    requests = []
    for place, row in _lines(path, skip=1):
        texts = row.get("block_ids", [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"{place}: block_ids is no list of texts")
        requests.append(
            TraceRequest(
                arrival_s=_number(row, "arrival_s", place),
                prompt_tokens=_count(row, "prompt_tokens", place, least=1),
                output_tokens=max(1, _count(row, "output_tokens", place)),
                block_ids=tuple(names.setdefault(text, len(names)) for text in texts),
                scope=str(row.get("scope", "")),
                session=str(row.get("session", "")),
                think_s=_number(row, "think_s", place) if "think_s" in row else 0.0,
            )
        )
    return requests, _count(head, "block_tokens", f"{path}:1", least=1)


def _lines(path: Path, skip: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file with their places; empty lines are passed over."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if number > skip and line.strip():
                yield f"{path}:{number}", _object(line, f"{path}:{number}")


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{place} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is no JSON object")
    return value


def _number(row: dict[str, Any], name: str, place: str) -> float:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ConfigError(f"{place}: {name}={value!r} is no number of 0 or more")
    return float(value)


def _count(row: dict[str, Any], name: str, place: str, *, least: int = 0) -> int:
    value = row.get(name)
    if type(value) is not int or not least <= value < 2**53:
        raise ConfigError(f"{place}: {name}={value!r} is no whole number of {least} or more")
    return value


def _ids(row: dict[str, Any], name: str, place: str) -> tuple[int, ...]:
    value = row.get(name)
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise ConfigError(f"{place}: {name} is no list of whole numbers")
    return tuple(value)
