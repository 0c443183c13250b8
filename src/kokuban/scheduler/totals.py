"""What the scheduler counts."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kokuban.core.request import RequestId
from kokuban.core.step import STEP_SIZES, StepPlan, TokenEvent
from kokuban.scheduler.state import RequestState


@dataclass(slots=True)
class Totals:
    """Sums since the scheduler was made."""

    steps: int = 0
    step_sizes: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))
    """Steps by their prompt tokens and the tokens that they brought: see `STEP_SIZES`."""

    step_tokens: int = 0
    """Those tokens."""

    prompt_tokens: int = 0
    """Prompts of the requests that were begun, cached tokens included and forked ones not, each
    prompt once."""

    cached_tokens: int = 0
    """Those of them that the prefix cache had."""

    forked_tokens: int = 0
    """Prompt tokens that requests took over from a sibling, beside those above."""

    output_tokens: int = 0
    drafts: int = 0
    """Chunks that held draft tokens."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Draft tokens that were right, and were said."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    failed_requests: int = 0
    """Requests that ended with `FinishReason.ERROR`."""

    def count_tokens(
        self,
        plan: StepPlan,
        states: Mapping[RequestId, RequestState],
        events: Sequence[TokenEvent],
    ) -> None:
        """Count a step that ended by its tokens; one without any only moved blocks."""
        num_tokens = sum(len(event.tokens) for event in events)
        for chunk in plan.chunks:
            num_left = states[chunk.request_id].num_prompt - chunk.start
            num_tokens += max(0, min(len(chunk.token_ids), num_left))
        if num_tokens:
            self.step_sizes[bisect_left(STEP_SIZES, num_tokens)] += 1
            self.step_tokens += num_tokens

    def count_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """Count the drafts of one chunk."""
        self.drafts += 1
        self.drafted_tokens += num_drafts
        self.accepted_tokens += num_accepted


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot, taken between two steps."""

    running: int
    waiting: int
    totals: Totals
    retry_after_s: int
    """Seconds after which one more request is likely to be taken; 0: now."""
