"""What is known about one request: becomes its log line, its receipt and its share of the metrics.

The line holds ids, counts and times, never a word of a prompt or an answer. The tokens are kept for
the tenant's own questions only: see `history`.
"""

import logging
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from kokuban.core.errors import Overloaded, ShuttingDown, StepFailed
from kokuban.core.request import FinishReason
from kokuban.core.step import Usage
from kokuban.engine.generation import TextDelta
from kokuban.observe.clock import Clock
from kokuban.observe.metrics import ServingMetrics
from kokuban.server.facts import facts_of
from kokuban.server.openai_responses import UsageBody
from kokuban.server.quota import Account
from kokuban.server.receipt import merge, usage_body
from kokuban.text.parts import ReasoningPart

_log = logging.getLogger(__name__)


TOKEN_BYTES = array("i").itemsize


@dataclass(slots=True, kw_only=True, eq=False)
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
    model: str = ""
    tenant: str = ""
    scope: str = ""
    """The salt that parts the tenant's prefix cache."""

    account: Account | None = None
    """Where the tenant's tokens are counted."""

    timeout_s: float | None = None
    """Longest time from `started_s` to the last byte; None: no limit."""

    scores: bool = False
    """Whether something is told of every token of the prompt, so that the cache is not read."""

    compiles: bool = False
    """Whether a grammar may have to be compiled before it can begin."""

    pools: bool = False
    """Whether prompts become vectors: there is no first token to wait for."""

    created: int = field(default_factory=lambda: int(time.time()))
    prompt_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of `output_tokens` that became thoughts."""

    submitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    usages: dict[int, Usage] = field(default_factory=dict)
    """By choice: the latest that the engine told."""

    finishes: set[str] = field(default_factory=set)
    finish: str | None = None
    """How it ended: "stop", "length", "abort", "error" or "refused"."""

    prompts: list[bytes] = field(default_factory=list)
    """Ids as native ints of TOKEN_BYTES bytes; empty when nothing is to be remembered."""

    outputs: "dict[int, array[int]]" = field(default_factory=dict)
    """By choice. Grow at their ends only, and only while there are `prompts`."""

    trace: "Callable[[Record], None] | None" = None
    """Makes a span of it, where somebody traces."""

    parent: Mapping[str, str] = field(default_factory=dict)
    """The headers of W3C Trace Context that came with it."""

    on_end: "Callable[[Record], None] | None" = None
    _unread: dict[int, int] = field(default_factory=dict)
    """By choice: tokens whose text has not come yet."""

    _last_by_choice: dict[int, float] = field(default_factory=dict)

    async def watch(self, deltas: AsyncGenerator[TextDelta]) -> AsyncGenerator[TextDelta]:
        """Pass deltas on and count them.

        Raises:
            Overloaded: it waited too long to begin.
            StepFailed: a choice failed; the whole answer fails with it.
            ShuttingDown: the engine ended it.
        """
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.retry_after_s is not None:
                    text = delta.error or "the request waited too long"
                    raise Overloaded(text, retry_after_s=delta.retry_after_s)
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
            if not self.pools:
                self.metrics.observe("time_to_first_token_seconds", now_s - self.started_s)
            self.metrics.add("prompt_tokens", self.prompt_tokens)
        if delta.tokens:
            before_s = self._last_by_choice.get(delta.choice)
            if before_s is not None:
                self.metrics.observe("inter_token_latency_seconds", now_s - before_s)
            self._last_by_choice[delta.choice] = now_s
            self.last_token_s = now_s
            self.output_tokens += len(delta.tokens)
            self._unread[delta.choice] = self._unread.get(delta.choice, 0) + len(delta.tokens)
            self.metrics.add("generation_tokens", len(delta.tokens))
            self.pay(len(delta.tokens))
            if self.prompts:
                output = self.outputs.setdefault(delta.choice, array("i"))
                output.extend(token.token_id for token in delta.tokens)
        if delta.parts:  # Tokens belong to the text that they become.
            num_read = self._unread.pop(delta.choice, 0)
            if isinstance(delta.parts[0], ReasoningPart):
                self.reasoning_tokens += num_read
        if delta.usage is not None:
            self.usages[delta.choice] = delta.usage
        if delta.finish is not None:
            self.finishes.add(delta.finish.value)

    @property
    def shown_id(self) -> str:
        """What the client knows the request by: its own id if it gave one."""
        return self.request_id if self.client_id == "-" else self.client_id

    def pay(self, num_tokens: int) -> None:
        """Tokens of the tenant's were read or written."""
        if self.account is not None:
            self.account.pay_tokens(num_tokens)

    @property
    def num_remembered(self) -> int:
        """Tokens that are kept, prompts and outputs together."""
        prompts = sum(map(len, self.prompts)) // TOKEN_BYTES
        return prompts + sum(map(len, self.outputs.values()))

    def usage(self) -> Usage | None:
        """What the engine told so far, over all choices; None when it has told nothing.

        The engine does not see the end of a text that a stop string ends: then the time to decode
        is taken between the first and the last token that came.
        """
        merged = merge(self.usages, self.n)
        if merged is None or merged.decode_s or self.first_token_s is None or self.pools:
            return merged
        last_s = self.last_token_s or self.first_token_s
        return replace(merged, decode_s=last_s - self.first_token_s)

    def usage_body(self) -> UsageBody:
        """The counts so far, as the API shows them."""
        return usage_body(
            self.prompt_tokens, self.output_tokens, self.usage(), self.reasoning_tokens
        )

    def end(self, reason: str | None = None) -> None:
        """Write the line and the numbers; a second call does nothing.

        Args:
            reason: "abort", "error", or "refused" for what the engine never took up; None for an
                answer that was completed.
        """
        if self.finish is not None:
            return
        finish = self.finish = reason or ("length" if self.finishes == {"length"} else "stop")
        self.ended_s = self.clock.now()
        if self.on_end is not None:
            self.on_end(self)
        e2e_s = self.ended_s - self.started_s
        usage = self.usage()
        if reason != "refused":
            self.metrics.finished(finish)
        tpot_s = self.tpot_s
        if reason is None:
            self._observe(e2e_s, tpot_s, usage)
        _log.info(
            "%s id=%s client_id=%s n=%d prompt=%d cached=%d output=%d queue_ms=%s ttft_ms=%s "
            "tpot_ms=%s e2e_ms=%s finish=%s",
            self.api,
            self.request_id,
            self.client_id,
            self.n,
            self.prompt_tokens,
            usage.cached_tokens if usage else 0,
            self.output_tokens,
            _ms(usage.queue_s if usage else None),
            _ms(self.ttft_s),
            _ms(tpot_s),
            _ms(e2e_s),
            finish,
            extra={"facts": facts_of(self)},
        )
        if self.trace is not None:
            self.trace(self)

    @property
    def time_left_s(self) -> float | None:
        """Until it must be answered; None: any time."""
        if self.timeout_s is None:
            return None
        return max(0.0, self.started_s + self.timeout_s - self.clock.now())

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return (
            None
            if self.first_token_s is None or self.pools
            else self.first_token_s - self.started_s
        )

    @property
    def tpot_s(self) -> float | None:
        """(End to end - time to first token) / (output tokens of one choice - 1)."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        per_choice = self.output_tokens / max(1, len(self._last_by_choice))
        if per_choice <= 1:
            return None
        return (self.last_token_s - self.first_token_s) / (per_choice - 1)

    def _observe(self, e2e_s: float, tpot_s: float | None, usage: Usage | None) -> None:
        metrics = self.metrics
        metrics.observe("e2e_request_latency_seconds", e2e_s)
        metrics.observe("request_prompt_tokens", self.prompt_tokens)
        if not self.pools:
            metrics.observe("request_generation_tokens", self.output_tokens)
            metrics.observe("request_params_n", self.n)
        if self.max_tokens is not None:
            metrics.observe("request_params_max_tokens", self.max_tokens)
        if tpot_s is not None:
            metrics.observe("request_time_per_output_token_seconds", tpot_s)
        if usage is not None:
            metrics.add("prompt_tokens_cached", usage.cached_tokens)
            metrics.observe("request_queue_time_seconds", usage.queue_s)
            metrics.observe("request_prefill_time_seconds", usage.prefill_s)
            metrics.observe("request_inference_time_seconds", usage.prefill_s + usage.decode_s)
            num_computed = max(0, self.prompt_tokens - usage.cached_tokens)
            metrics.observe("request_prefill_kv_computed_tokens", num_computed)
            if not self.pools:
                metrics.observe("request_decode_time_seconds", usage.decode_s)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
