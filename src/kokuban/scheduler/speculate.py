"""Adds draft tokens to the requests that decode, as many as are expected to pay.

A step that computes a few more tokens of a request takes little longer while it is bound by reading
the weights; each of them that turns out right is a token that costs no step of its own. How often
they are right is counted, for each request and kind of guess; what they cost is measured
(`step_times`). So it turns itself off for texts that nobody can guess and for batches that are
bound by arithmetic, and tries again now and then.

Drafts come last in a plan, out of what everybody else has left of budget and pool, and what blocks
they brought is given back at commit unless accepted tokens fill it. So they keep nobody out and
preempt nobody. They decide about time alone: what is said never depends on them.

Owns: the counts. Asks: a `Proposer` for guesses, the manager for blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kokuban.core.request import RequestId
from kokuban.core.speculation import Offer, Proposer, Wanted
from kokuban.core.step import Chunk, StepPlan
from kokuban.kvcache.blocks import num_blocks_for, num_empty_slots
from kokuban.kvcache.manager import Manager
from kokuban.plan.speculation import MAX_DRAFTS_A_STEP, choose_lengths
from kokuban.scheduler.draft import Draft
from kokuban.scheduler.prices import Prices
from kokuban.scheduler.state import RequestState
from kokuban.scheduler.step_times import StepTimes

MAX_DRAFTS = 16
"""Draft tokens of one request in a step."""

PROBE_EVERY = 64
"""Steps without drafts after which a request gets one anyway: texts and machines change."""

EXPLORE_EVERY = 8
"""Steps with drafts after which one has twice as many, so that their price is measured: whatever
the model says of it, nobody knows it before."""

MAX_PROBE_BACKLOG = 256
"""Tokens that a proposer may have to compute for a probe."""

REQUESTS_A_SKIP = 8
"""A request whose guesses were of no use is not asked for more in up to B / 8 steps of B requests:
where drafts hardly pay, looking for them must not cost either."""

_TRIAL_LENGTHS = (1, 4, 16)
"""Numbers of drafts at which a step is looked at before anybody is asked for any."""

_OWN_WEIGHT = 0.1
"""Of one more draft in a request's own counts."""

_COMMON_WEIGHT = 0.01
"""And in those of the engine, with which every request begins."""


_NO_OFFER = Offer(0)


class _Decoder(NamedTuple):
    """A request that decodes in the step that is planned."""

    state: RequestState
    chunk: Chunk
    offer: Offer


@dataclass(slots=True)
class _Record:
    """What is known of the guesses for one request."""

    chances: list[float]
    kind: int = 0
    """Of the drafts in flight."""

    num_fruitless: int = 0
    """Times in a row that it was asked for and got no drafts."""

    num_skipped: int = 0
    """Steps since it was asked for."""

    num_without: int = 0
    """Steps since it had drafts."""


class Speculator:
    """See the module.

    Args:
        block_size: the manager's.
        prices: of steps, before they are measured.
    """

    def __init__(
        self, proposer: Proposer, manager: Manager, block_size: int, prices: Prices
    ) -> None:
        self._proposer = proposer
        self._manager = manager
        self._block_size = block_size
        self._times = StepTimes(prices)
        self._chances = list(proposer.chances)
        self._records: dict[RequestId, _Record] = {}
        self._num_steps = 0
        """With drafts that pay."""

        self._begun_s = self._guessing_s = 0.0
        self._caught_up = False
        """Whether guessing for the step in flight had to compute more than guesses."""

    def extend(self, draft: Draft, num_spare_blocks: int, now_s: float) -> None:
        """Put drafts behind the tokens of requests that decode.

        Args:
            draft: the step, planned to the end otherwise.
            num_spare_blocks: of the pool, that nobody needs in this step.
        """
        self._begun_s, self._guessing_s, self._caught_up = now_s, 0.0, False
        states = [state for state in draft.states.values() if state.decodes]
        if not states or draft.tokens_left < 1:
            return
        step_s = self._step_times(draft, states)
        decoders = self._decoders(draft, states, step_s)
        if not any(each.offer.num_tokens for each in decoders):
            return
        lengths = self._lengths(draft, decoders, step_s)
        chosen = [
            (decoder, min(length, self._room(decoder.chunk, num_spare_blocks)))
            for decoder, length in zip(decoders, lengths, strict=True)
        ]
        chosen = [(decoder, length) for decoder, length in chosen if length > 0]
        if not chosen:
            return
        self._note_price([length for _, length in chosen], _context(states))
        self._caught_up = any(each.offer.backlog > MAX_DRAFTS for each, _ in chosen)
        guesses = self._proposer.propose(
            [Wanted(each.state.id, each.state.token_ids, length) for each, length in chosen]
        )
        for (decoder, _), tokens in zip(chosen, guesses, strict=True):
            tokens = tokens[: self._room(decoder.chunk, num_spare_blocks)]
            if tokens:
                num_spare_blocks -= self._num_more_blocks(decoder.chunk, len(tokens))
                self._add(draft, decoder, tokens)

    def note(self, chunk: Chunk, num_accepted: int) -> None:
        """Count what became of a chunk's drafts: the accepted ones, and the first that was not."""
        record = self._records.get(chunk.request_id)
        if record is None:
            return
        for count in range(min(num_accepted + 1, chunk.num_drafts)):
            right = float(count < num_accepted)
            kind = record.kind
            record.chances[kind] += _OWN_WEIGHT * (right - record.chances[kind])
            self._chances[kind] += _COMMON_WEIGHT * (right - self._chances[kind])

    def time(self, plan: StepPlan, now_s: float) -> None:
        """Learn how long a step took, if it did nothing but decode."""
        num_requests, num_drafts = len(plan.chunks), sum(c.num_drafts for c in plan.chunks)
        only_decodes = plan.num_tokens == num_requests + num_drafts and not plan.admitted
        if num_requests and only_decodes and not plan.moves and not self._caught_up:
            context = sum(chunk.start for chunk in plan.chunks) // num_requests
            seconds = now_s - self._begun_s
            self._times.observe(context, num_requests, num_drafts, seconds, self._guessing_s)

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._records.pop(request_id, None)
        self._proposer.forget(request_id)

    def _step_times(self, draft: Draft, states: Sequence[RequestState]) -> Callable[[int], float]:
        """Seconds of the step that is planned, with so many drafts in it."""
        num_requests = len(states)
        num_others = sum(len(chunk.token_ids) for chunk in draft.chunks.values()) - num_requests
        context = _context(states)
        return lambda count: self._times.step_s(context, num_requests, count, num_others)

    def _decoders(
        self, draft: Draft, states: Sequence[RequestState], step_s: Callable[[int], float]
    ) -> list[_Decoder]:
        """What could be guessed for the requests that decode."""
        most_skips = len(states) // REQUESTS_A_SKIP
        # What a draft must bring at least, whatever comes with it, to make tokens come faster.
        without_s = step_s(0)
        least = min((step_s(count) / without_s - 1) / count for count in _TRIAL_LENGTHS) * len(
            states
        )
        return [
            _Decoder(state, draft.chunks[state.id], self._offer(state, most_skips, least))
            for state in states
        ]

    def _offer(self, state: RequestState, most_skips: int, least: float) -> Offer:
        most = min(MAX_DRAFTS, state.max_output_tokens - state.num_output - 1)
        if most < 1:
            return _NO_OFFER
        record = self._records.get(state.id)
        if record is None:
            record = self._records[state.id] = _Record(list(self._chances))
        record.num_without += 1
        if record.num_without < PROBE_EVERY:
            if record.num_skipped < min(record.num_fruitless, most_skips):
                record.num_skipped += 1
                return _NO_OFFER
            if max(record.chances) < least:
                return _NO_OFFER
        record.num_skipped = 0
        record.num_fruitless += 1
        return self._proposer.offer(state.id, state.token_ids, most)

    def _lengths(
        self, draft: Draft, decoders: Sequence[_Decoder], step_s: Callable[[int], float]
    ) -> list[int]:
        """How many drafts each request gets: what pays, and one for those that are tried again."""
        context = _context([each.state for each in decoders])
        lengths = choose_lengths(
            [self._chance(each) for each in decoders],
            [each.offer.num_tokens for each in decoders],
            num_rows=len(decoders),
            budget=draft.tokens_left,
            step_s=step_s,
            round_s=lambda count: self._times.scaled_s(self._proposer.round_s(count, context)),
        )
        lengths = self._explore(lengths, decoders, min(draft.tokens_left, MAX_DRAFTS_A_STEP))
        left = draft.tokens_left - sum(lengths)
        for i, decoder in enumerate(decoders):
            if lengths[i] == 0 and left > 0 and self._is_to_be_tried(decoder):
                lengths[i] = 1
                left -= 1
        return lengths

    def _note_price(self, lengths: Sequence[int], context_tokens: int) -> None:
        """What the model says of guessing so many tokens for each request."""
        rounds = [sum(length > done for length in lengths) for done in range(max(lengths))]
        self._guessing_s = sum(self._proposer.round_s(count, context_tokens) for count in rounds)

    def _explore(self, lengths: list[int], decoders: Sequence[_Decoder], room: int) -> list[int]:
        """Now and then twice as many drafts, as far as there are so many."""
        if not any(lengths):
            return lengths
        self._num_steps += 1
        if self._num_steps % EXPLORE_EVERY:
            return lengths
        longer = [
            min(2 * length, each.offer.num_tokens)
            for length, each in zip(lengths, decoders, strict=True)
        ]
        return longer if sum(longer) <= room else lengths

    def _chance(self, decoder: _Decoder) -> float:
        record = self._records.get(decoder.state.id)
        return record.chances[decoder.offer.kind] if record is not None else 0.0

    def _is_to_be_tried(self, decoder: _Decoder) -> bool:
        offer = decoder.offer
        if offer.num_tokens == 0 or offer.backlog > MAX_PROBE_BACKLOG:
            return False
        return self._records[decoder.state.id].num_without >= PROBE_EVERY

    def _room(self, chunk: Chunk, num_spare_blocks: int) -> int:
        """Drafts that the request's last block and the spare ones hold."""
        num_free_blocks = max(0, num_spare_blocks) // self._manager.num_groups
        return num_empty_slots(_end(chunk), self._block_size) + num_free_blocks * self._block_size

    def _num_more_blocks(self, chunk: Chunk, num_drafts: int) -> int:
        have, needed = (
            num_blocks_for(end, self._block_size) for end in (_end(chunk), _end(chunk) + num_drafts)
        )
        return (needed - have) * self._manager.num_groups

    def _add(self, draft: Draft, decoder: _Decoder, tokens: Sequence[int]) -> None:
        chunk, state = decoder.chunk, decoder.state
        more = self._manager.grow(state.id, _end(chunk) + len(tokens))
        draft.extend(
            chunk._replace(
                token_ids=(*chunk.token_ids, *tokens),
                new_block_ids=tuple(
                    (*blocks, *new) for blocks, new in zip(chunk.new_block_ids, more, strict=True)
                ),
                num_drafts=len(tokens),
            )
        )
        record = self._records[state.id]
        record.kind = decoder.offer.kind
        record.num_fruitless = record.num_without = 0


def make_speculator(
    proposer: Proposer | None, manager: Manager, block_size: int, prices: Prices
) -> Speculator | None:
    """One for each scheduler that has a proposer."""
    return None if proposer is None else Speculator(proposer, manager, block_size, prices)


def _context(states: Sequence[RequestState]) -> int:
    """Tokens of each, on average."""
    return sum(len(state.token_ids) for state in states) // len(states)


def _end(chunk: Chunk) -> int:
    """Tokens of the sequence up to the last one of the chunk."""
    return chunk.start + len(chunk.token_ids)
