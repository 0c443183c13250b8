"""Why the engine hits more or less than a policy says: its rules, switched on one after the other.

    block, token     the policy alone, hits counted in two ways (see `policy`)
    tail-first       a request's blocks become recent from its last to its first
    prompt-1         the last token of a prompt is computed, whatever is cached
    pages            blocks of the engine's size; a request holds its blocks until it ends
    answers          what was generated takes blocks too, and stays cached
    one-at-a-time    the whole engine, made to run one request after the other
    overlap          the whole engine: requests run together

From `pages` on the real manager decides, without scheduler and time. So `one-at-a-time` must hit
exactly what `answers` does: then nothing but overlap is left to explain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kokuban.core.errors import ConfigError
from kokuban.core.request import RequestId
from kokuban.kvcache.manager import Manager
from kokuban.simulate.policy import PolicyReplay
from kokuban.simulate.replay import Progress, ReplaySetup, make_manager, replay
from kokuban.simulate.synthesis import Synthesizer
from kokuban.simulate.trace import Trace


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Hits with all rules up to this one."""

    rule: str
    hits: int
    count: int
    """Tokens of all prompts; blocks in the first row."""

    mean_running: float = 1.0
    """Requests that held KV at a time: the average over the time in which any did."""

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.count)


def explain(
    trace: Trace, capacity_blocks: int, setup: ReplaySetup, progress: Progress | None = None
) -> list[RuleResult]:
    """Hit rates at one capacity, with one rule more in each row.

    Args:
        capacity_blocks: in blocks of the trace. Each row has a pool of that many tokens; what
            `setup` says of the pool does not count.

    Raises:
        ConfigError: the trace has sessions or no names, the tokens are no whole number of blocks,
            or a request does not fit.
    """
    _check(trace, capacity_blocks, setup)
    num_blocks = capacity_blocks * trace.block_tokens // setup.scheduler.block_size
    setup = replace(setup, num_blocks=num_blocks * len(setup.kv.groups), num_ram_blocks=0)
    alone = replace(setup, scheduler=replace(setup.scheduler, max_running_requests=1))
    count = trace.num_prompt_tokens
    single, together = replay(trace, alone, progress), replay(trace, setup, progress)
    return [
        *_policy_rows(trace, capacity_blocks),
        RuleResult("pages", _Sequence(trace, setup, answers=False).run(), count),
        RuleResult("answers", _Sequence(trace, setup, answers=True).run(), count),
        RuleResult("one-at-a-time", single.cached_tokens, count),
        RuleResult("overlap", together.cached_tokens, count, together.mean_running),
    ]


def _check(trace: Trace, capacity_blocks: int, setup: ReplaySetup) -> None:
    if not trace.num_blocks or any(request.session for request in trace.requests):
        raise ConfigError(
            f"{trace.name} has sessions, or names no blocks: its rates cannot be explained rule by "
            f"rule; use a Mooncake trace, or --mode real"
        )
    size, block_size = capacity_blocks * trace.block_tokens, setup.scheduler.block_size
    if size % block_size or trace.block_tokens % block_size:
        raise ConfigError(
            f"blocks of {trace.block_tokens} tokens are no whole number of blocks of {block_size}"
        )
    # One block more, since the end of a hit is copied.
    most = min(size - block_size, setup.max_context_tokens)
    if trace.max_tokens > most:
        raise ConfigError(
            f"the longest request has {trace.max_tokens:,} tokens and {most:,} is what pool and "
            f"context hold; raise --capacity or --max-context-tokens"
        )


def _policy_rows(trace: Trace, capacity_blocks: int) -> list[RuleResult]:
    policy = PolicyReplay(trace)
    plain, backwards = policy.run(capacity_blocks), policy.run(capacity_blocks, tail_first=True)
    capped = sum(
        min(tokens, request.prompt_tokens - 1)
        for tokens, request in zip(backwards.hits_by_request, trace.requests, strict=True)
    )
    return [
        RuleResult("block", plain.hit_blocks, plain.num_blocks),
        RuleResult("token", plain.hit_tokens, plain.num_tokens),
        RuleResult("tail-first", backwards.hit_tokens, backwards.num_tokens),
        RuleResult("prompt-1", capped, backwards.num_tokens),
    ]


class _Sequence:
    """Requests in order of arrival, each over before the next, through the real manager."""

    def __init__(self, trace: Trace, setup: ReplaySetup, *, answers: bool) -> None:
        self._trace = trace
        self._manager = make_manager(setup)
        self._chunk_tokens = setup.scheduler.token_budget
        self._synthesizer = Synthesizer(trace)
        self._answers = answers

    def run(self) -> int:
        """Prompt tokens that were hit."""
        return sum(self._serve(index) for index in range(len(self._trace.requests)))

    def _serve(self, index: int) -> int:
        prompt = self._synthesizer.prompt(index)
        manager, name = self._manager, RequestId(str(index))
        chain = manager.make_chain("")
        found = manager.find_cached_prefix(chain, prompt)
        manager.begin(name, chain, found, prompt)
        tokens: Sequence[int] = prompt
        self._compute(manager, name, found.num_tokens, prompt)
        if self._answers:
            # The last token of an answer is said and never computed.
            num_said = self._trace.requests[index].output_tokens - 1
            said = (self._synthesizer.output_token(index, place) for place in range(num_said))
            tokens = [*prompt, *said]
            self._compute(manager, name, len(prompt), tokens)
        manager.release(name, tokens)
        return found.num_tokens

    def _compute(
        self, manager: Manager, name: RequestId, start: int, tokens: Sequence[int]
    ) -> None:
        """Take blocks and fill them, chunk by chunk, as steps do."""
        while start < len(tokens):
            stop = min(len(tokens), start + self._chunk_tokens)
            manager.grow(name, stop)
            manager.commit_moves(manager.take_moves())
            manager.advance(name, stop, tokens)
            start = stop
