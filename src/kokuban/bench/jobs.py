"""What is asked: prompts of random lengths, prompts out of a file, or those of a trace."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kokuban.core.errors import ConfigError
from kokuban.simulate.readers import read_trace
from kokuban.simulate.synthesis import Synthesizer
from kokuban.simulate.trace import Trace

FIRST_TOKEN_ID, NUM_TOKEN_IDS = 1000, 20_000
"""Ids that are ordinary text in every vocabulary of today."""

MAX_TOKENS = 2**20
"""Of a prompt, or of an answer: more than any model of today takes."""

_MASK = 2**64 - 1

_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
_WORDS = tuple(dict.fromkeys(_VOCABULARY.split()))
"""Each is one token, with the space before it, in most vocabularies."""

Prompt = str | list[int] | list[dict[str, Any]]
"""A text, token ids (completions only) or messages (chat only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request that will be sent."""

    prompt: Prompt
    max_tokens: int
    arrival_s: float
    """From the start. Of a later turn of a session it is not looked at."""

    after: int | None = None
    """Index of the job whose answer this one waits for: the turn before."""

    think_s: float = 0.0
    """Between that answer and this request."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, from the least to the most, each equally likely."""

    least: int
    most: int

    def draw(self, draw: random.Random) -> int:
        return draw.randint(self.least, self.most)


def parse_lengths(option: str, text: str) -> Lengths:
    """`128` or `128:1024`.

    Raises:
        ConfigError: it is neither, or more than `MAX_TOKENS`.
    """
    parts = text.split(":")
    if len(parts) in (1, 2) and all(part.isdecimal() for part in parts):
        # Python reads no number of thousands of digits; it need not be read to be too large.
        numbers = [int(part) if len(part) < 100 else MAX_TOKENS + 1 for part in parts]
        if max(numbers) > MAX_TOKENS:
            raise ConfigError(f"{option} {text} is above {MAX_TOKENS:,} tokens; give fewer")
        if 0 < numbers[0] <= numbers[-1]:
            return Lengths(numbers[0], numbers[-1])
    raise ConfigError(f"{option} {text} is no number of tokens, like 128, or range, like 128:1024")


def random_jobs(
    times: Sequence[float],
    prompts: Lengths,
    outputs: Lengths,
    *,
    token_ids: bool,
    draw: random.Random,
) -> list[Job]:
    """A job for each arrival, with random words or random token ids."""
    jobs = []
    for time_s in times:
        numbers = [draw.getrandbits(64) for _ in range(prompts.draw(draw))]
        prompt = _prompt(numbers, token_ids=token_ids)
        jobs.append(Job(prompt=prompt, max_tokens=outputs.draw(draw), arrival_s=time_s))
    return jobs


def file_jobs(
    path: Path, times: Sequence[float], outputs: Lengths, *, draw: random.Random
) -> list[Job]:
    """A job for each arrival, with the file's prompts in turn.

    A line of a `.jsonl` file is an object with `prompt` (a text or token ids) or `messages`, and
    maybe `max_tokens`. Of any other file each line that is not empty is a prompt.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong.
    """
    lines = list(_prompts(path))
    if not lines:
        raise ConfigError(f"--prompts {path} holds no prompt")
    return [
        Job(
            prompt=prompt,
            max_tokens=max_tokens or outputs.draw(draw),
            arrival_s=time_s,
        )
        for time_s, (prompt, max_tokens) in zip(times, _cycle(lines, len(times)), strict=True)
    ]


def trace_jobs(path: Path, *, limit: int, speed: float, token_ids: bool) -> list[Job]:
    """The requests of a trace, at its times.

    Equal blocks become equal text, so that a prefix cache finds what it would have found. Turns of
    a session follow one another, as in `kokuban simulate`.

    Args:
        limit: only so many, from the first; 0: all.
        speed: arrivals and pauses come so many times as fast.

    Raises:
        ConfigError: the trace cannot be read.
    """
    trace = read_trace(path).first(limit)
    texts = Synthesizer(trace)
    start_s = trace.requests[0].arrival_s
    return [
        Job(
            prompt=_prompt(texts.prompt(index), token_ids=token_ids),
            max_tokens=request.output_tokens,
            arrival_s=(request.arrival_s - start_s) / speed,
            after=after,
            think_s=request.think_s / speed,
        )
        for (index, request), after in zip(
            enumerate(trace.requests), _turns_before(trace), strict=True
        )
    ]


def _turns_before(trace: Trace) -> Iterator[int | None]:
    """For each request the index of the turn before it in its session."""
    last: dict[str, int] = {}
    for index, request in enumerate(trace.requests):
        yield last.get(request.session) if request.session else None
        if request.session:
            last[request.session] = index


def _prompt(numbers: Iterable[int], *, token_ids: bool) -> Prompt:
    """Equal numbers are equal tokens or words; runs of other numbers are other ones."""
    if token_ids:
        return [FIRST_TOKEN_ID + _mix(number) % NUM_TOKEN_IDS for number in numbers]
    return " ".join(_WORDS[_mix(number) % len(_WORDS)] for number in numbers)


def _mix(number: int) -> int:
    """64 bits in which no pattern of the numbers is left: blocks of a trace are runs of them, and a
    remainder alone would make every so manieth block the same text.

    Source: the finaliser of MurmurHash3 (public domain).
    """
    x = number & _MASK
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & _MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return x ^ x >> 33


def _cycle(
    lines: Sequence[tuple[Prompt, int | None]], count: int
) -> Iterator[tuple[Prompt, int | None]]:
    for index in range(count):
        yield lines[index % len(lines)]


def _prompts(path: Path) -> Iterator[tuple[Prompt, int | None]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        yield from ((line, None) for line in text.splitlines() if line.strip())
        return
    # Not `splitlines`: U+2028 may stand in a JSON text and ends no line.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _row(line, f"{path}:{number}")


def _row(line: str, place: str) -> tuple[Prompt, int | None]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{place} holds half of a surrogate pair, which is no character; write the whole pair "
            f"or U+FFFD"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is no JSON: {error}") from error
    prompt = row.get("messages", row.get("prompt")) if isinstance(row, dict) else None
    if not isinstance(prompt, str | list) or not prompt:
        raise ConfigError(f"{place} has neither prompt nor messages")
    max_tokens = row.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ConfigError(f"{place}: max_tokens={max_tokens!r} is no number above 0")
    if max_tokens is not None and max_tokens > MAX_TOKENS:
        raise ConfigError(f"{place}: max_tokens={max_tokens} is above {MAX_TOKENS:,}")
    return prompt, max_tokens
