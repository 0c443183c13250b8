"""How far one request is: its tokens, how many of them are computed, and what it cost."""

import sys
from collections.abc import Sequence

from kokuban.core.request import FinishReason, Request
from kokuban.core.session import Origin
from kokuban.core.step import SampledToken, Usage
from kokuban.kvcache.cached import CachedPrefix
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.table import NOT_RESTORED, Restored
from kokuban.kvcache.tiers import Fetch


class Stopwatch:
    """Splits a request's life into time queued, before its first token, and after it."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self.queue_s = 0.0
        self.prefill_s = 0.0
        self.decode_s = 0.0

    def end_queue(self, now_s: float) -> None:
        self.queue_s += self._lap(now_s)

    def end_prefill(self, now_s: float) -> None:
        self.prefill_s += self._lap(now_s)

    def end_decode(self, now_s: float) -> None:
        self.decode_s += self._lap(now_s)

    def _lap(self, now_s: float) -> float:
        elapsed = max(0.0, now_s - self._since_s)
        self._since_s = now_s
        return elapsed


class RequestState:
    """Progress of one request. Owned and written by the scheduler alone.

    There is no prefill or decode state: `num_computed` moves towards the number of tokens.

        tokens    prompt ───────────────────| output ──── | sampled last
        computed  0 ─────── num_computed ──▶              | (never computed before it is needed)

    Args:
        request: what was asked.
        index: counts requests in the order that the scheduler saw them.
        max_output_tokens: what the client asked for, cut to what context and pool allow.
        chain: keys for the prefix cache, or None.
    """

    def __init__(
        self, request: Request, index: int, max_output_tokens: int, chain: KeyChain | None
    ) -> None:
        self.request = request
        self.id, self.num_prompt = request.id, len(request.prompt_token_ids)
        self.index = index
        # A total order: the request of the lowest rank runs first and is never preempted.
        self.rank = request.priority, index
        self.max_output_tokens = max_output_tokens
        self.chain = chain
        self.token_ids = list(request.prompt_token_ids)
        """Prompt and output so far."""

        self.num_computed = 0
        """Tokens whose K and V are in the cache, or will be after the step in flight."""

        self.cached_tokens = 0
        """Tokens that the prefix cache had at the first admission."""

        self.forked_tokens = 0
        """Tokens of the prompt that a sibling had computed when this request began."""

        self.restored = NOT_RESTORED  # Those of them that came up from below the pool.
        self.own_from = sys.maxsize  # The first token that it computed itself, over all runs.
        self.found: tuple[int, CachedPrefix] | None = None
        """What the prefix cache had when it was asked last, and the version of its index then."""

        self.needed = 0  # Blocks that it needed when it was looked at last.
        self.fetch: Fetch | None = None  # What it waits, or has waited, for to come from disk.
        self.resumes = self.running = False  # It ends its session's pause; it holds blocks.
        self.resumed_from: Origin = ""
        self.num_skips = 0
        """Times that another request was admitted before this one although it was behind it."""

        self.num_preemptions = 0
        self.recomputed_tokens = self._num_ever_computed = self._num_scored = 0
        self.drafted_tokens = self.accepted_tokens = 0  # Guesses, and those that were right.
        self._forked_scores: tuple[SampledToken, ...] = ()
        self._watch = Stopwatch(request.arrival_s)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self.token_ids[self.num_prompt :])

    @property
    def cache_write_tokens(self) -> int:
        """Prompt tokens that it has computed for others to find: none that a sibling had."""
        if self.chain is None or self.forked_tokens:
            return 0
        return max(0, min(self.num_prompt, self._num_ever_computed) - self.cached_tokens)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def decodes(self) -> bool:
        """Whether all that is left to compute is the token that was sampled last."""
        return self.num_computed + 1 == len(self.token_ids) > self.num_prompt

    def begin(self, now_s: float, num_cached: int, restored: Restored = NOT_RESTORED) -> None:
        """Leave the queue: the first `num_cached` tokens need not be computed."""
        self._watch.end_queue(now_s)
        self.running = True
        self.num_computed = num_cached
        self.own_from = min(self.own_from, num_cached)
        self.found = None
        self.num_skips = 0
        if self.num_preemptions == 0:
            self.cached_tokens = num_cached
            self.restored = restored

    def begin_fork(
        self,
        now_s: float,
        parent: "RequestState",
        num_tokens: int,
        scores: Sequence[SampledToken] = (),
    ) -> None:
        """Leave the queue with the first `num_tokens` tokens of a sibling, which computed them.

        What the cache had for the prompt it had for all who share it.

        Args:
            scores: the prompt logprobs of those tokens, to be told with the first chunk.
        """
        self._forked_scores = tuple(scores)
        self.begin(now_s, num_tokens)
        self.cached_tokens, self.restored = parent.cached_tokens, parent.restored
        self.forked_tokens = num_tokens

    def preempt(self, now_s: float) -> None:
        """Go back to the queue with nothing computed; the output so far is kept."""
        self._end_run(now_s)
        self.num_computed = 0
        self.num_preemptions += 1

    def advance(self, num_tokens: int) -> int:
        """Count the tokens of a chunk as computed; returns how many of them were before."""
        start, known = self.num_computed, self._num_ever_computed
        end = self.num_computed = start + num_tokens
        if start >= known:
            self._num_ever_computed = end
            return 0
        again = min(end, known) - start
        self.recomputed_tokens += again
        self._num_ever_computed = max(known, end)
        return again

    def accept(
        self, tokens: tuple[SampledToken, ...], now_s: float
    ) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
        """Append sampled tokens up to the one that ends the request.

        Returns:
            The tokens appended, and why the request ends with the last of them, if it does.
        """
        for count, token in enumerate(tokens, start=1):
            if len(self.token_ids) == self.num_prompt:
                self._watch.end_prefill(now_s)
            self.token_ids.append(token.token_id)
            if reason := self._finish_reason(token.token_id):
                return tokens[:count], reason
        return tokens, None

    def new_scores(self, start: int, scores: Sequence[SampledToken]) -> tuple[SampledToken, ...]:
        """The prompt logprobs of a chunk at `start` that were not given out before a preemption.

        The first chunk of a fork brings those of its sibling along.
        """
        if not scores and not self._forked_scores:
            return ()
        if self._forked_scores:
            start, scores = 0, (*self._forked_scores, *scores)
            self._forked_scores = ()
        known = max(0, self._num_scored - start)
        self._num_scored = max(self._num_scored, start + len(scores))
        return tuple(scores[known:])

    def finish(self, now_s: float) -> Usage:
        """The receipt of a request that ends now."""
        if self.running:
            self._end_run(now_s)
        else:
            self._watch.end_queue(now_s)
        return self.receipt()

    def receipt(self) -> Usage:
        """Counts so far, and the times of the phases that have ended."""
        return Usage(
            prompt_tokens=self.num_prompt,
            output_tokens=self.num_output,
            cached_tokens=self.cached_tokens,
            forked_tokens=self.forked_tokens,
            cached_ram_tokens=self.restored.ram_tokens,
            cached_disk_tokens=self.restored.disk_tokens,
            cache_write_tokens=self.cache_write_tokens,
            resumed_from=self.resumed_from,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            preemptions=self.num_preemptions,
            recomputed_tokens=self.recomputed_tokens,
            queue_s=self._watch.queue_s,
            prefill_s=self._watch.prefill_s,
            decode_s=self._watch.decode_s,
        )

    def _end_run(self, now_s: float) -> None:
        self.running = False
        if self.num_output:
            self._watch.end_decode(now_s)
        else:
            self._watch.end_prefill(now_s)

    def _finish_reason(self, token_id: int) -> FinishReason | None:
        # The sampler makes end tokens impossible up to min_tokens; a row whose every other token
        # is masked may still say one, and that does not end the request. Where a grammar lets one
        # be said, nothing else could follow.
        num_output, request = len(self.token_ids) - self.num_prompt, self.request
        may_end = num_output > request.params.min_tokens or request.params.grammar is not None
        if token_id in request.end_token_ids and may_end:
            return FinishReason.STOP
        if num_output >= self.max_output_tokens:
            return FinishReason.LENGTH
        return None
