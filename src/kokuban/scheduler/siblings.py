"""Computes one prompt once for all choices that continue it.

Of requests that belong together and have one prompt, one leads: it is begun like any other. The
others are held outside of the line until it has computed the prompt; then they are put in front,
and each is begun as a fork: it shares the leader's blocks and computes the last token of the prompt
itself, for its logits.

    leader    prompt ──────────────▶ | output ─▶
    sibling   held ················· | fork, last token of the prompt, output ─▶

Whoever has computed the prompt serves as the source of a fork. If nobody has it any more (the
leader was cancelled, failed, or lost its blocks), the next one leads. One that ends while others
wait keeps its blocks until they have been planned: see `release_ended`.
"""

from collections.abc import Sequence

from kokuban.core.request import Request, RequestId
from kokuban.core.step import SampledToken
from kokuban.kvcache.manager import Manager
from kokuban.scheduler.prefixes import Prefixes
from kokuban.scheduler.queue import WaitingQueue
from kokuban.scheduler.state import RequestState


class Siblings:
    """What requests with one prompt know of each other. Plain data of `SiblingForks`."""

    def __init__(self, states: Sequence[RequestState]) -> None:
        self.leader: RequestState | None = states[0]
        """Who computes the prompt for the others, running or waiting; None once it is computed."""

        self.waiting = {state.id: state for state in states}
        """Those that have not begun, the leader perhaps among them, in their order."""

        self.sources: dict[RequestId, RequestState] = {}
        """Those that hold the computed prompt."""

        self.scores: list[SampledToken] = []
        """Of the whole prompt, as a leader found them; empty if nobody asked."""

        self.leaders_scores: list[SampledToken] = []
        """What the leader has found of them so far."""

        self.has_begun = False


class SiblingForks:
    """Says who waits for whom, and who may fork from whom.

    Args:
        queue: where those that may not begin yet are held.
        manager: asked whether a fork is possible; holds the blocks of those that ended.
        prefixes: asked whether those are worth keeping in lower tiers.
    """

    def __init__(self, queue: WaitingQueue, manager: Manager, prefixes: Prefixes) -> None:
        self._queue = queue
        self._prefixes = prefixes
        self._manager = manager
        self._of: dict[RequestId, Siblings] = {}
        self._ended: dict[RequestId, RequestState] = {}

    @property
    def ended_ids(self) -> set[RequestId]:
        """Requests that have ended and still hold blocks, for their siblings."""
        return set(self._ended)

    def push(self, states: Sequence[RequestState]) -> None:
        """Queue new requests that belong together."""
        first = states[0].request
        alike = [state for state in states if _is_sibling(first, state.request)]
        siblings = Siblings(alike) if len(alike) > 1 and states[0].num_prompt > 1 else None
        for state in states:
            self._forget_ended(state.id)  # The id may be used again.
            if siblings is None or state.id not in siblings.waiting:
                self._queue.push(state)
                continue
            self._of[state.id] = siblings
            if siblings.leader is state:
                self._queue.push(state)
            else:
                self._queue.hold(state)

    def has_begun(self, state: RequestState) -> bool:
        """Whether the request waits for a sibling that began in time: it has met its deadline."""
        siblings = self._of.get(state.id)
        return siblings is not None and siblings.has_begun

    def find_source(self, state: RequestState) -> RequestState | None:
        """From whom a waiting request may be forked, at the last token of its prompt."""
        siblings = self._of.get(state.id)
        if siblings is None or state.id not in siblings.waiting:
            return None
        for source in reversed(siblings.sources.values()):
            if self._manager.can_fork(source.id, fork_point(state)):
                return source
        return None

    def hold_back(self, state: RequestState) -> bool:
        """Take a request that was found no source for out of the line, if another one leads.

        Returns:
            False if it is to be begun like any other; it leads then.
        """
        siblings = self._of.get(state.id)
        if siblings is None or siblings.leader is state:
            return False
        if siblings.leader is None:
            _lead(siblings, state)
            return False
        self._queue.hold(state)
        return True

    def begin(self, state: RequestState) -> None:
        """Note that a request has begun."""
        if siblings := self._of.get(state.id):
            siblings.waiting.pop(state.id, None)
            siblings.has_begun = True

    def kept_from(self, state: RequestState) -> int | None:
        """The token from which a request that computed some of its prompt may be forked soon."""
        siblings = self._of.get(state.id)
        if siblings is None or not siblings.waiting or state.num_output:
            return None
        return fork_point(state)

    def advance(self, state: RequestState, scores: tuple[SampledToken, ...]) -> None:
        """Note that a request has computed more of its prompt; perhaps the others may begin.

        To be called before its new tokens are accepted.
        """
        siblings = self._of.get(state.id)
        if siblings is None or state.num_output:
            return
        if siblings.leader is state:
            siblings.leaders_scores += scores
        if state.num_computed < fork_point(state):
            return
        siblings.sources[state.id] = state
        leader = siblings.leader
        if leader is state:
            siblings.scores = siblings.leaders_scores
        if leader is state or (leader is not None and leader.id in siblings.waiting):
            siblings.leader = None
        self._queue.put_first(tuple(siblings.waiting.values()))

    def prompt_scores(self, state: RequestState) -> Sequence[SampledToken]:
        """The prompt logprobs of a fork, which computes none of them itself."""
        siblings = self._of.get(state.id)
        return () if siblings is None else siblings.scores

    def preempt(self, state: RequestState) -> None:
        """Note that a request has lost its blocks. Unless it leads it is like any other now."""
        siblings = self._of.get(state.id)
        if siblings is not None:
            siblings.sources.pop(state.id, None)
            if siblings.leader is not state:
                del self._of[state.id]

    def end(self, state: RequestState, *, serves: bool) -> bool:
        """Note that a request has ended; if it led, the next one does.

        Args:
            serves: whether its blocks hold what they should.

        Returns:
            Whether it keeps its blocks for the next step; `release_ended` gives them back.
        """
        siblings = self._of.pop(state.id, None)
        if siblings is None:
            return False
        siblings.waiting.pop(state.id, None)
        if siblings.leader is state:
            siblings.leader = None
            if siblings.waiting:
                following = next(iter(siblings.waiting.values()))
                _lead(siblings, following)
                self._queue.put_first((following,))
        if not siblings.waiting:
            for request_id in tuple(siblings.sources):
                self._forget_ended(request_id)
        is_source = siblings.sources.pop(state.id, None) is not None
        if is_source and serves and siblings.waiting:
            siblings.sources[state.id] = self._ended[state.id] = state
            self._of[state.id] = siblings
            return True
        return False

    def release_ended(self) -> bool:
        """Give back the blocks that those that ended still hold; returns whether there were any."""
        found = bool(self._ended)
        for request_id in tuple(self._ended):
            self._forget_ended(request_id)
        return found

    def check(self) -> None:
        """Assert that nobody waits for one that will not come."""
        for request_id, siblings in self._of.items():
            if request_id in self._queue.held_ids:
                assert request_id in siblings.waiting, f"{request_id} is held but has begun"
                leader = siblings.leader
                assert leader is not None, f"{request_id} waits for nobody"
                assert leader.running or leader.id in self._queue, "the leader is gone"
                assert leader.id not in self._queue.held_ids, "the leader is held"
            assert (request_id in self._ended) <= bool(siblings.waiting), "kept for nobody"
        assert self._queue.held_ids <= set(self._of), "a request is held for no reason"

    def _forget_ended(self, request_id: RequestId) -> None:
        state = self._ended.pop(request_id, None)
        if state is not None:
            self._of.pop(request_id).sources.pop(request_id)
            down = self._prefixes.keeps(state)
            self._manager.release(request_id, state.token_ids, down=down)


def fork_point(state: RequestState) -> int:
    """Tokens that a fork shares: all of the prompt but the last, which it needs the logits of."""
    return state.num_prompt - 1


def _lead(siblings: Siblings, state: RequestState) -> None:
    siblings.leader = state
    siblings.leaders_scores = []


def _is_sibling(first: Request, other: Request) -> bool:
    """Whether two requests may share KV, and would be begun next to each other."""
    tokens, others = first.prompt_token_ids, other.prompt_token_ids
    return (
        (tokens is others or tokens == others)
        and first.tenant == other.tenant
        and first.cache_scope == other.cache_scope
        and first.priority == other.priority
        and first.params.prompt_logprobs == other.params.prompt_logprobs
        and first.pooling == other.pooling
        # Scores are handed over to a fork, hidden states are not.
        and not (first.pooling is not None and first.pooling.needs_every_row)
    )
