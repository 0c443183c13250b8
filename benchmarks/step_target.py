"""Does `--step-target-ms` keep the gaps short while a long prompt comes in?

Two engines with one model, one without a target and one with, take turns: some requests decode, and
a long prompt arrives among them. The gap (ITL) is the time between two tokens of one decoder as its
client sees them. The target is a multiple of the median gap of the engine without one, measured
first, unless it is given.

    python benchmarks/step_target.py smollm2 --decoders 16 --prompt 6000 --rounds 5

Where a machine is shared, the longest gap is that of the neighbours as well: the gaps before the
arrival say how much of it.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kokuban.core.config import RuntimeConfig, SchedulerConfig, parse_bytes
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine

MAX_TOKENS = 4096
"""Of a decoder: more than it comes to before it is stopped."""


@dataclass
class Round:
    """What the clients of one run saw, in seconds."""

    before: list[float]
    """Gaps of all decoders before the long prompt arrived."""

    during: list[float]
    """Those that ended between its arrival and its first token."""

    ttft_s: float
    """Of the long prompt."""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.before) * 1e3

    def ratio(self, gaps: Sequence[float]) -> float:
        """The longest gap, in medians before the arrival."""
        return max(gaps) * 1e3 / self.median_ms

    def p99_ratio(self) -> float:
        """The gap that one in a hundred is longer than: no single stall of the machine."""
        return statistics.quantiles(self.during, n=100)[-1] * 1e3 / self.median_ms


@dataclass
class Side:
    """One of the two engines."""

    engine: Engine
    rounds: list[Round] = field(default_factory=list)


def make_engine(args: argparse.Namespace, target_ms: float | None) -> Engine:
    return build_engine(
        args.model,
        scheduler=SchedulerConfig(step_target_ms=target_ms, prefix_cache=False),
        runtime=RuntimeConfig(kv_memory_bytes=parse_bytes(args.kv_memory), threads=args.threads),
    )


def make_request(
    rng: random.Random, vocab: int, name: str, num_tokens: int, max_tokens: int
) -> Request:
    ids = tuple(rng.randrange(vocab) for _ in range(num_tokens))
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(id=RequestId(name), prompt_token_ids=ids, params=params)


async def run(engine: Engine, args: argparse.Namespace, seed: int) -> Round:
    """Start the decoders, let them settle, send the prompt; stop all at its first token."""
    rng, vocab = random.Random(seed), engine.client.info.vocab_size
    arrivals: list[list[float]] = [[] for _ in range(args.decoders)]
    done = asyncio.Event()

    async def decode(index: int) -> None:
        request = make_request(rng, vocab, f"d{seed}-{index}", args.context, MAX_TOKENS)
        async for event in engine.client.submit([request]):
            if event.tokens:
                arrivals[index].append(time.perf_counter())
            if done.is_set():
                return

    decoders = [asyncio.create_task(decode(index)) for index in range(args.decoders)]
    while min(map(len, arrivals)) < args.warm_tokens:
        await asyncio.sleep(0.01)
    sent_s = time.perf_counter()
    request = make_request(rng, vocab, f"long{seed}", args.prompt, 1)
    async for _ in engine.client.submit([request]):
        pass
    first_s = time.perf_counter()
    counts = [len(times) for times in arrivals]
    while any(len(t) <= count for t, count in zip(arrivals, counts, strict=True)):
        await asyncio.sleep(0.01)  # The gap in which the last chunk lies.
    done.set()
    await asyncio.gather(*decoders)
    gaps = [(end, end - begin) for times in arrivals for begin, end in pairwise(times[2:])]
    return Round(
        before=[gap for end, gap in gaps if end <= sent_s],
        during=[gap for end, gap in gaps if sent_s < end],
        ttft_s=first_s - sent_s,
    )


def report(sides: dict[str, Side]) -> None:
    heads = ["median before", "longest before", "longest after"]
    heads += ["longest/median", "least..most", "p99/median"]
    print(f"{'target':<10}" + "".join(f"{head:>16}" for head in heads) + f"{'TTFT s':>10}")
    for name, side in sides.items():
        rounds = side.rounds
        ratios = sorted(each.ratio(each.during) for each in rounds)
        cells = (
            f"{statistics.median(each.median_ms for each in rounds):.1f} ms",
            f"{statistics.median(max(each.before) for each in rounds) * 1e3:.1f} ms",
            f"{statistics.median(max(each.during) for each in rounds) * 1e3:.1f} ms",
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f}..{ratios[-1]:.2f}",
            f"{statistics.median(map(Round.p99_ratio, rounds)):.2f}",
        )
        ttft_s = statistics.median(each.ttft_s for each in rounds)
        print(f"{name:<10}" + "".join(f"{cell:>16}" for cell in cells) + f"{ttft_s:>10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--decoders", type=int, default=16)
    parser.add_argument("--context", type=int, default=64, help="tokens of a decoder's prompt")
    parser.add_argument("--prompt", type=int, default=6000, help="tokens of the long prompt")
    parser.add_argument("--warm-tokens", type=int, default=40, help="of each decoder before it")
    parser.add_argument("--target-ms", type=float, help="default: --factor times the median gap")
    parser.add_argument("--factor", type=float, default=1.8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--kv-memory", default="3GiB", help="else all decoders wait for room")
    args = parser.parse_args()
    sides = {"none": Side(make_engine(args, None))}
    target_ms = args.target_ms
    first = asyncio.run(run(sides["none"].engine, args, 0))
    if target_ms is None:
        target_ms = round(args.factor * first.median_ms, 1)
    sides[f"{target_ms} ms"] = Side(make_engine(args, target_ms))
    for number in range(1, args.rounds + 1):
        for side in sides.values() if number % 2 else reversed(sides.values()):
            side.rounds.append(asyncio.run(run(side.engine, args, number)))
            last = side.rounds[-1]
            print(
                f"round {number}: {last.ratio(last.during):.2f} medians, TTFT {last.ttft_s:.1f} s",
                file=sys.stderr,
            )
    facts = sides["none"].engine.client.info
    print(
        f"{facts.model}, {facts.threads} threads, {facts.isa}: {args.prompt} tokens among "
        f"{args.decoders} decoders, medians of {args.rounds} rounds in turns"
    )
    report(sides)
    for name, side in sides.items():
        if preempted := side.engine.client.stats().preemptions:
            print(f"{name}: {preempted} requests were preempted: give more with --kv-memory")
        side.engine.close()


if __name__ == "__main__":
    main()
