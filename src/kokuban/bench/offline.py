"""How fast an engine is without HTTP: rounds of requests that begin together.

Prompts are random ids under a fixed seed and answers run to their full length, so that two rounds
do the same work; no two rounds share a prompt, so that nothing comes from the prefix cache. Texts
are made as for a user. Sizes take turns, so that a slow spell of the machine falls on all of them.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from kokuban.bench.limits import Limits
from kokuban.bench.stats import Rounds, over_rounds
from kokuban.core.errors import StepFailed
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.engine import Engine
from kokuban.engine.generation import generate
from kokuban.plan.machine import MachineConstants

SEED = 20_250_101

FORMULAS = {
    "ttft_s": "from the start of the round until every request has its first token",
    "prefill_tok_s": "prompt tokens of all requests / ttft_s",
    "decode_tok_s": "tokens of the steps in which all requests decode / time of these steps: from "
    "the step that brings the last first token to the step that ends the first answer",
    "tpot_s": "requests / decode_tok_s: seconds between two tokens of one request in those steps",
    "prefill_of_limit": "the time of a step that computes all prompts with each operation at the "
    "limit that binds it (weights, K and V read from memory, products in registers), as measured "
    "before and after the round / ttft_s",
    "decode_of_limit": "the same of a step in the middle of the answers, for one token of every "
    "request / tpot_s",
    "output_tok_s": "output tokens of all requests / seconds of the round, prefill included",
    "total_tok_s": "prompt and output tokens / seconds of the round",
    "seconds": "from the start of the round to the end of the last answer",
}


class StepTokens(NamedTuple):
    """What one step of the engine brought, as the event loop saw it."""

    time_s: float
    tokens: int
    started: int
    """Requests whose first token came."""

    finished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one round computes."""

    size: int
    """Requests that begin together."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """One round of one size. `FORMULAS` says what each is."""

    ttft_s: float
    prefill_tok_s: float
    decode_tok_s: float | None
    """None when there was no step in which all decoded: answers are too short for that."""

    tpot_s: float | None
    output_tok_s: float
    total_tok_s: float
    seconds: float
    prefill_of_limit: float | None = None
    decode_of_limit: float | None = None


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """All rounds of one size."""

    size: int
    figures: dict[str, Rounds | None]
    preemptions: int
    """In all timed rounds. Above 0 the pool was too small, and the figures tell of that."""


class StepLog:
    """Groups the tokens of many requests by the step that brought them.

    A step's events reach the event loop in one wake-up, and their coroutines run in one turn of the
    loop: what is noted in one turn is one step.
    """

    def __init__(self) -> None:
        self.steps: list[StepTokens] = []
        self._open = False

    def note(self, now_s: float, *, tokens: int, first: bool, last: bool) -> None:
        """One request got so many tokens."""
        if not self._open:
            self._open = True
            self.steps.append(StepTokens(now_s, 0, 0, 0))
            # Behind all that is ready in this turn, before what the next wake-up makes ready.
            asyncio.get_running_loop().call_soon(self._close)
        step = self.steps[-1]
        self.steps[-1] = StepTokens(
            step.time_s, step.tokens + tokens, step.started + first, step.finished + last
        )

    def _close(self) -> None:
        self._open = False


def figures_of(
    steps: Sequence[StepTokens], work: Work, start_s: float, end_s: float
) -> RoundFigures:
    """The figures of a round, from its steps. Times are on one clock."""
    seconds = end_s - start_s
    outputs, prompts = work.size * work.output_tokens, work.size * work.prompt_tokens
    begun = 0
    all_begun = len(steps) - 1
    for index, step in enumerate(steps):
        begun += step.started
        if begun == work.size:
            all_begun = index
            break
    ttft_s = steps[all_begun].time_s - start_s
    decode = _decode_tok_s(steps[all_begun:])
    return RoundFigures(
        ttft_s=ttft_s,
        prefill_tok_s=prompts / ttft_s,
        decode_tok_s=decode,
        tpot_s=work.size / decode if decode else None,
        output_tok_s=outputs / seconds,
        total_tok_s=(outputs + prompts) / seconds,
        seconds=seconds,
    )


def _decode_tok_s(steps: Sequence[StepTokens]) -> float | None:
    """Of the steps behind the first one, up to the one that ends a request."""
    last = next((i for i, step in enumerate(steps) if step.finished), 0)
    if last == 0:
        return None
    return sum(step.tokens for step in steps[1 : last + 1]) / (steps[last].time_s - steps[0].time_s)


def of_limit(
    figures: RoundFigures, work: Work, limits: Limits, machines: Sequence[MachineConstants]
) -> RoundFigures:
    """With the shares of the machine's limit, as it was measured around the round."""
    prefill_s = fmean(limits.prefill_s(each, work.size, work.prompt_tokens) for each in machines)
    middle = work.prompt_tokens + work.output_tokens // 2
    step_s = fmean(limits.decode_s(each, work.size, middle) for each in machines)
    return replace(
        figures,
        prefill_of_limit=prefill_s / figures.ttft_s,
        # All requests get a token in a step: tpot_s is the time of one.
        decode_of_limit=step_s / figures.tpot_s if figures.tpot_s else None,
    )


class OfflineBench:
    """Rounds of work on one engine. One event loop for all of them.

    Args:
        limits: what the figures are compared with; None leaves that out.
    """

    def __init__(self, engine: Engine, limits: Limits | None = None) -> None:
        self._engine, self._limits = engine, limits
        self._draw = random.Random(SEED)

    async def run(
        self, works: Sequence[Work], rounds: int, progress: Callable[[], None] = lambda: None
    ) -> list[SizeFigures]:
        """Warm up with one round of each, then time `rounds` of each in turns.

        Args:
            progress: called after each round, those that warm up included.

        Raises:
            StepFailed, RequestError, Overloaded: a request could not be served.
        """
        found: list[list[RoundFigures]] = [[] for _ in works]
        preempted = [0] * len(works)
        for turn in range(1 + rounds):
            for index, work in enumerate(works):
                before = self._engine.client.stats().preemptions
                figures = await self._round_beside_limits(work)
                if turn > 0:
                    found[index].append(figures)
                    preempted[index] += self._engine.client.stats().preemptions - before
                progress()
        return [
            _summary(work, figures, count)
            for work, figures, count in zip(works, found, preempted, strict=True)
        ]

    async def _round_beside_limits(self, work: Work) -> RoundFigures:
        if self._limits is None:
            return await self.round(work)
        before = self._limits.measure()
        figures = await self.round(work)
        return of_limit(figures, work, self._limits, (before, self._limits.measure()))

    async def round(self, work: Work) -> RoundFigures:
        """Run `work.size` requests at once, with prompts that no round had before."""
        vocab_size = self._engine.client.info.vocab_size
        prompts = [
            [self._draw.randrange(vocab_size) for _ in range(work.prompt_tokens)]
            for _ in range(work.size)
        ]
        log = StepLog()
        start_s = time.perf_counter()
        await asyncio.gather(*(self._one(ids, work.output_tokens, log) for ids in prompts))
        return figures_of(log.steps, work, start_s, time.perf_counter())

    async def _one(self, prompt: Sequence[int], output_tokens: int, log: StepLog) -> None:
        params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        deltas = generate(self._engine.client, self._engine.tokenizer, prompt, params)
        first = True
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.finish is FinishReason.ERROR:
                    raise StepFailed(delta.error or "the engine could not finish a request")
                if delta.tokens:
                    log.note(
                        time.perf_counter(),
                        tokens=len(delta.tokens),
                        first=first,
                        last=delta.finish is not None,
                    )
                    first = False


def _summary(work: Work, rounds: Sequence[RoundFigures], preemptions: int) -> SizeFigures:
    figures: dict[str, Rounds | None] = {}
    for name in RoundFigures.__slots__:
        values = [value for each in rounds if (value := getattr(each, name)) is not None]
        figures[name] = over_rounds(values) if len(values) == len(rounds) else None
    return SizeFigures(work.size, figures, preemptions)
