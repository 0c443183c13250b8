"""What a trace says: requests with lengths, times, and names of the blocks of their prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request as somebody's server has seen it, without its text."""

    arrival_s: float
    """Seconds from the start of the trace. A later turn of a session starts when `think_s` says."""

    prompt_tokens: int
    output_tokens: int
    """1 or more: what the trace states as less is counted as one."""

    block_ids: tuple[int, ...] = ()
    """Names of the prompt's blocks, `Trace.block_tokens` tokens each, the last one perhaps fewer.
    Equal names in one scope: equal tokens up to there. Empty: nobody has this prompt in common."""

    scope: str = ""
    """Names of different scopes have nothing to do with each other."""

    session: str = ""
    """Requests with one non-empty session are its turns, in order, one after another."""

    think_s: float = 0.0
    """Between the end of the session's turn before and this one: the tool, or the human."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival."""

    name: str
    block_tokens: int
    """Tokens of a named block."""

    requests: tuple[TraceRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def num_blocks(self) -> int:
        """Names in all prompts together."""
        return sum(len(request.block_ids) for request in self.requests)

    @property
    def num_unique_blocks(self) -> int:
        """Different names."""
        return len({(r.scope, block) for r in self.requests for block in r.block_ids})

    @property
    def max_tokens(self) -> int:
        """Of the longest request, prompt and output."""
        return max(request.prompt_tokens + request.output_tokens for request in self.requests)

    def first(self, count: int) -> "Trace":
        """The first requests only; 0: all."""
        return replace(self, requests=self.requests[:count]) if count else self

    def at_rate(self, factor: float) -> "Trace":
        """The same with arrivals `factor` times as fast. What people and tools take stays."""
        return replace(
            self,
            requests=tuple(replace(r, arrival_s=r.arrival_s / factor) for r in self.requests),
        )


def make_trace(name: str, block_tokens: int, requests: Sequence[TraceRequest]) -> Trace:
    """Put requests in order of arrival; those that arrive together stay as they were."""
    return Trace(name, block_tokens, tuple(sorted(requests, key=lambda r: r.arrival_s)))
