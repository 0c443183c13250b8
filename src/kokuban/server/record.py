"""What is known about one request: becomes its log line and its share of the metrics.

The line holds ids, counts and times, never a word of a prompt or an answer.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from kokuban.core.errors import ShuttingDown, StepFailed
from kokuban.core.request import FinishReason
from kokuban.core.step import Usage
from kokuban.engine.generation import TextDelta
from kokuban.observe.clock import Clock
from kokuban.observe.metrics import ServingMetrics
from kokuban.server.openai_responses import UsageBody, usage_body

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Record:
    """One request that generates. Written by the task that answers it."""

    api: str
    request_id: str
    client_id: str
    clock: Clock
    metrics: ServingMetrics
    n: int
    max_tokens: int | None
    started_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    usages: list[Usage] = field(default_factory=list)
    finishes: set[str] = field(default_factory=set)
    ended: bool = False
    _last_by_choice: dict[int, float] = field(default_factory=dict)

    async def watch(self, deltas: AsyncGenerator[TextDelta]) -> AsyncGenerator[TextDelta]:
        """Pass deltas on and count them.

        Raises:
            StepFailed: a choice failed; the whole answer fails with it.
            ShuttingDown: the engine ended it.
        """
        async with aclosing(deltas):
            async for delta in deltas:
                self._count(delta)
                if delta.finish is FinishReason.ERROR:
                    raise StepFailed(delta.error or "the engine could not finish this request")
                if delta.finish is FinishReason.CANCELLED:
                    raise ShuttingDown("the engine ended this request before it was complete")
                yield delta

    def _count(self, delta: TextDelta) -> None:
        now_s = self.clock.now()
        if self.first_token_s is None:
            self.first_token_s = now_s
            self.metrics.observe("time_to_first_token_seconds", now_s - self.started_s)
            self.metrics.add("prompt_tokens", self.prompt_tokens)
        if delta.tokens:
            before_s = self._last_by_choice.get(delta.choice)
            if before_s is not None:
                self.metrics.observe("inter_token_latency_seconds", now_s - before_s)
            self._last_by_choice[delta.choice] = now_s
            self.last_token_s = now_s
            self.output_tokens += len(delta.tokens)
            self.metrics.add("generation_tokens", len(delta.tokens))
        if delta.finish is not None:
            self.finishes.add(delta.finish.value)
            if delta.usage is not None:
                self.usages.append(delta.usage)
                if delta.choice % self.n == 0:  # The choices of a prompt share it.
                    self.cached_tokens += delta.usage.cached_tokens

    def usage_body(self) -> UsageBody:
        """The counts so far, as the API shows them."""
        return usage_body(self.prompt_tokens, self.output_tokens, self.cached_tokens)

    def end(self, reason: str | None = None) -> None:
        """Write the line and the numbers; a second call does nothing.

        Args:
            reason: "abort", "error", or "refused" for what the engine never took up; None for an
                answer that was completed.
        """
        if self.ended:
            return
        self.ended = True
        finish = reason or ("length" if self.finishes == {"length"} else "stop")
        e2e_s = self.clock.now() - self.started_s
        if reason != "refused":
            self.metrics.finished(finish)
        ttft_s = self.first_token_s - self.started_s if self.first_token_s is not None else None
        tpot_s = self._tpot_s()
        if reason is None:
            self._observe(e2e_s, tpot_s)
        _log.info(
            "%s id=%s client_id=%s n=%d prompt=%d cached=%d output=%d queue_ms=%s ttft_ms=%s "
            "tpot_ms=%s e2e_ms=%s finish=%s",
            self.api,
            self.request_id,
            self.client_id,
            self.n,
            self.prompt_tokens,
            self.cached_tokens,
            self.output_tokens,
            _ms(self.usages[0].queue_s if self.usages else None),
            _ms(ttft_s),
            _ms(tpot_s),
            _ms(e2e_s),
            finish,
        )

    def _tpot_s(self) -> float | None:
        """(End to end - time to first token) / (output tokens of one choice - 1)."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        per_choice = self.output_tokens / max(1, len(self._last_by_choice))
        if per_choice <= 1:
            return None
        return (self.last_token_s - self.first_token_s) / (per_choice - 1)

    def _observe(self, e2e_s: float, tpot_s: float | None) -> None:
        metrics = self.metrics
        metrics.observe("e2e_request_latency_seconds", e2e_s)
        metrics.observe("request_prompt_tokens", self.prompt_tokens)
        metrics.observe("request_generation_tokens", self.output_tokens)
        metrics.observe("request_params_n", self.n)
        metrics.add("prompt_tokens_cached", self.cached_tokens)
        if self.max_tokens is not None:
            metrics.observe("request_params_max_tokens", self.max_tokens)
        if tpot_s is not None:
            metrics.observe("request_time_per_output_token_seconds", tpot_s)
        for usage in self.usages[:1]:
            metrics.observe("request_queue_time_seconds", usage.queue_s)
            metrics.observe("request_prefill_time_seconds", usage.prefill_s)
            metrics.observe("request_decode_time_seconds", usage.decode_s)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
