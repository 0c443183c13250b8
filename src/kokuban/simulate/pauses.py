"""What it is worth to tell the engine that a session waits for its tool.

The sessions of a trace are replayed with and without pauses. Beside hits and latencies it is
counted what was computed although it had been computed before, and whether that was the right
choice: whatever still lay below the pool is priced against computing it again.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kokuban.core.request import Request
from kokuban.core.step import Admission, StepPlan, Usage
from kokuban.scheduler.sessions import SessionKey
from kokuban.simulate.meter import Percentiles
from kokuban.simulate.replay import Progress, Replay, ReplayResult, ReplaySetup
from kokuban.simulate.trace import Trace

Pausing = Literal["never", "told", "learned"]
"""Whether sessions are paused while their tools run: with the true duration, or without any, so
that the engine learns it."""

_TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseResult:
    """A run, and what became of the KV of its sessions."""

    replay: ReplayResult
    prefill_tokens: int
    """Of all prompts: those that were computed, again after preemption too."""

    again_tokens: int
    """Those of them that an earlier turn of the session had computed."""

    needless_tokens: int
    """Tokens to be computed when a request began that lay in the pool, or below it and were cheaper
    to bring up."""

    restored_tokens: int
    """Room for tokens in the blocks that came up from host memory, before or after their request
    came."""

    resumed_ttft_s: Percentiles
    """Of the turns that follow another one."""

    places: Mapping[str, int]
    """What was decided for the KV of paused sessions: pool, below, dropped."""

    resumed_from: Mapping[str, int]
    """Where the KV of turns after a pause came from: pool, ram, recompute."""


def replay_pauses(
    trace: Trace, setup: ReplaySetup, pausing: Pausing, progress: Progress | None = None
) -> PauseResult:
    """Run the whole trace."""
    return PauseReplay(trace, setup, pausing, progress).measure()


class PauseReplay(Replay):
    """A run whose requests name their sessions, and that looks at what each begins from."""

    def __init__(
        self,
        trace: Trace,
        setup: ReplaySetup,
        pausing: Pausing,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(trace, setup, progress)
        self._requests = trace.requests
        self._block_size = setup.scheduler.block_size
        self._pausing = pausing
        self._prefill_tokens = 0
        self._again_tokens = 0
        self._needless_tokens = 0
        self._ttfts: list[float] = []
        self._places: Counter[str] = Counter()
        self._resumed_from: Counter[str] = Counter()

    def measure(self) -> PauseResult:
        result = self.run()
        loaded = sum(tier.read for tier in self.core.stats().tiers)
        return PauseResult(
            replay=result,
            prefill_tokens=self._prefill_tokens,
            again_tokens=self._again_tokens,
            needless_tokens=self._needless_tokens,
            restored_tokens=loaded * self._block_size,
            resumed_ttft_s=Percentiles.of(self._ttfts),
            places=dict(self._places),
            resumed_from=dict(self._resumed_from),
        )

    def make_request(self, index: int, session: str = "") -> Request:
        return super().make_request(index, session or self._requests[index].session)

    def on_plan(self, plan: StepPlan) -> None:
        starts = {chunk.request_id: chunk.start for chunk in plan.chunks}
        for admission in plan.admitted:
            self._check(admission, starts[admission.request.id])

    def on_end(self, index: int, usage: Usage, ttft_s: float) -> None:
        self._prefill_tokens += usage.prompt_tokens - usage.cached_tokens + usage.recomputed_tokens
        before, following = self.turn_before(index), self.turn_after(index)
        if before is not None:
            self._ttfts.append(ttft_s)
            self._again_tokens += max(0, self._known(before, index) - usage.cached_tokens)
        if usage.resumed_from:
            self._resumed_from[usage.resumed_from] += 1
        if following is not None and self._pausing != "never":
            self._pause(self._requests[index].session, self._requests[following].think_s)

    def _pause(self, session: str, think_s: float) -> None:
        expected_s = think_s if self._pausing == "told" else None
        status = self.core.pause_session(SessionKey("", session), expected_s, (_TOOL,))
        if status is not None:
            self._places[status.place] += 1

    def _check(self, admission: Admission, start: int) -> None:
        """Count what a request that begins will compute although it would be cheaper not to."""
        tokens: Sequence[int] = (
            *admission.request.prompt_token_ids,
            *admission.output_token_ids,
        )
        found = self.manager.find_cached_prefix(self.manager.make_chain(""), tokens)
        missed = found.num_tokens - start
        if missed > 0:
            restore_s = self.prices.restore_s(found.num_below)
            if restore_s < self.prices.recompute_s(start, missed):
                self._needless_tokens += missed

    def _known(self, before: int, index: int) -> int:
        """Tokens of a prompt that the turn before it has computed. The last one is never cached."""
        line = self._requests[before]
        said = (
            self.synthesizer.output_token(before, place) for place in range(line.output_tokens - 1)
        )
        prompt, earlier = self.synthesizer.prompt(index), self.synthesizer.prompt(before)
        pairs = zip(prompt, (*earlier, *said), strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return min(common, len(prompt) - 1)
