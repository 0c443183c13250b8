"""The rows of the comparison, and what one row found."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines import OURS
from worker import Case, Times

PROMPT, NEW = 128, 64
"""Tokens of each prompt and answer of a decode row."""

DEFAULT_ROWS = "prefill512,prefill2048,decode1,decode8,decode32,decode64"


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work: `prefill512` is one prompt of 512 tokens, `decode8` 8 sequences."""

    name: str
    batch: int
    prompt: int
    new: int

    def case(self, round_: int) -> Case:
        """The same for all engines, another in each round, so that no cache can help."""
        return Case(
            self.batch, self.prompt, self.new, seed=round_ * 100_003 + self.prompt + self.batch
        )

    def speed(self, times: Times) -> float:
        """Prompt tokens a second to the first token, or new tokens a second while all decode."""
        if self.new == 1:
            return self.batch * self.prompt / times.prefill_s
        if times.decode_tok_s is None:
            raise ValueError(f"{self.name}: at no time did all sequences decode")
        return times.decode_tok_s


def parse_rows(text: str) -> list[Row]:
    """Raises `ValueError` for a row that is neither prefillN nor decodeN."""
    rows = []
    for name in text.split(","):
        match = re.fullmatch(r"(prefill|decode)([1-9][0-9]*)", name.strip())
        if match is None:
            raise ValueError(f"{name!r} is no row; write prefillN (tokens) or decodeN (sequences)")
        kind, number = match[1], int(match[2])
        is_prefill = kind == "prefill"
        rows.append(
            Row(match[0], 1, number, 1) if is_prefill else Row(match[0], number, PROMPT, NEW)
        )
    return rows


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our speed over a peer's, round by round."""

    speed: float
    """Ours, the median, in tokens a second."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, ours: Sequence[float], peer: Sequence[float]) -> "Ratio":
        ratios = [a / b for a, b in zip(ours, peer, strict=True)]
        return cls(statistics.median(ours), statistics.median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True, slots=True)
class Line:
    """One peer in one row."""

    row: str
    peer: str
    speed: float
    """The peer's, the median, in tokens a second."""

    rounds: int
    dropped: bool
    """Whether the first round left the peer behind; then it is all that there is."""

    ratios: dict[str, Ratio]
    """By the name of our engine: ours with each type of K and V."""


@dataclass(slots=True)
class RowFound:
    """Speeds of a row by engine, round by round. The first round only scouts and warms up."""

    row: Row
    rounds: list[dict[str, float]] = field(default_factory=list)

    def keep(self, share: float) -> set[str]:
        """Ours, and the peers that reached this share of the best peer in the first round."""
        [scout] = self.rounds
        peers = {name: speed for name, speed in scout.items() if not is_ours(name)}
        best = max(peers.values(), default=0.0)
        return {name for name in scout if is_ours(name) or peers[name] >= share * best}

    def lines(self) -> list[Line]:
        """Ours against each peer, the fastest peer first."""
        peers = [name for name in self.rounds[0] if not is_ours(name)]
        return sorted((self._line(peer) for peer in peers), key=lambda line: -line.speed)

    def alone(self) -> dict[str, float]:
        """Our own speeds, by engine, where no peer ran this row; else nothing."""
        if any(not is_ours(name) for name in self.rounds[0]):
            return {}
        rounds = self.rounds[1:] or self.rounds
        return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}

    def _line(self, peer: str) -> Line:
        counted = [speeds for speeds in self.rounds[1:] if peer in speeds]
        rounds = counted or self.rounds[:1]
        speeds = [found[peer] for found in rounds]
        ratios = {
            name: Ratio.of([found[name] for found in rounds], speeds)
            for name in rounds[0]
            if is_ours(name)
        }
        dropped = not counted and len(self.rounds) > 1
        return Line(self.row.name, peer, statistics.median(speeds), len(rounds), dropped, ratios)


def is_ours(name: str) -> bool:
    return name.startswith(OURS)
