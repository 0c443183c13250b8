"""What does the prefix cache cost when it finds nothing?

A batch of prompts that share nothing is computed by two engines in alternation, one with the prefix
cache and one without. Around every call of the KV manager (keys, index, block tables, event log) a
clock runs: its share of the steps' time is the bookkeeping. The difference of the two engines'
shares is what the cache adds; it is steadier than the difference of their times, which is told too.

    nice -n 5 python benchmarks/cache_overhead.py smollm2 --batch 32 --rounds 7

With `--repeat` each round sends its prompts twice, so that the second half is found.
"""

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig, SchedulerConfig, parse_bytes
from kokuban.kvcache.manager import Manager


class Watch:
    """Sums the time of calls; of nested ones the outermost counts."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._inside = False

    def over(self, target: object, names: Sequence[str]) -> None:
        """Time these methods of an object."""
        for name in names:
            setattr(target, name, self._timed(name, getattr(target, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside = True
            begin = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self.ns[name] += time.perf_counter_ns() - begin
                self.calls[name] += 1
                self._inside = False

        return timed

    def clear(self) -> None:
        self.ns.clear()
        self.calls.clear()

    @property
    def seconds(self) -> float:
        return self.ns.total() * 1e-9


@dataclass(frozen=True)
class Round:
    """One batch: seconds of everything, of the steps in it, and of the manager in these."""

    wall_s: float
    cpu_s: float
    """Of this process: on a busy machine steadier than time on the wall."""

    steps_s: float
    manager_s: float
    num_steps: int

    @property
    def share(self) -> float:
        return self.manager_s / self.steps_s


class Side:
    """One of the two engines."""

    def __init__(self, args: argparse.Namespace, *, prefix_cache: bool) -> None:
        self.llm = LLM(
            args.model,
            scheduler=SchedulerConfig(prefix_cache=prefix_cache, max_running_requests=args.batch),
            runtime=RuntimeConfig(
                kv_memory_bytes=parse_bytes(args.kv_memory),
                kv_ram_bytes=parse_bytes(args.kv_ram) if prefix_cache else 0,
                threads=args.threads,
            ),
        )
        core: Any = self.llm.engine.client._core
        self.calls, self._steps = Watch(), Watch()
        methods = [name for name in vars(Manager) if callable(getattr(Manager, name))]
        self.calls.over(core._manager, [name for name in methods if not name.startswith("_")])
        self._steps.over(core, ["step"])
        self.rounds: list[Round] = []

    def run(self, prompts: Sequence[Sequence[int]], num_new: int, times: int) -> None:
        self.calls.clear()
        self._steps.clear()
        params = SamplingParams(max_tokens=num_new, temperature=0, ignore_eos=True)
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(times):
            self.llm.generate(prompts, params)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        steps_s, num_steps = self._steps.seconds, self._steps.calls["step"]
        self.rounds.append(Round(wall_s, cpu_s, steps_s, self.calls.seconds, num_steps))


def report(sides: dict[str, Side]) -> None:
    heads = ("wall s", "CPU s", "steps s", "steps", "manager ms", "share")
    print(f"{'cache':<8}" + "".join(f"{head:>11}" for head in heads))
    for name, side in sides.items():
        rounds = side.rounds

        def median(field: str, rounds: Sequence[Round] = rounds) -> float:
            return statistics.median(getattr(each, field) for each in rounds)

        print(
            f"{name:<8}{median('wall_s'):>11.3f}{median('cpu_s'):>11.3f}{median('steps_s'):>11.3f}{rounds[0].num_steps:>11}"
            f"{median('manager_s') * 1e3:>11.2f}{median('share'):>11.3%}"
        )
    on, off = sides["on"].rounds, sides["off"].rounds
    pairs = list(zip(on, off, strict=True))
    added = statistics.median((a.manager_s - b.manager_s) / b.steps_s for a, b in pairs)
    print(f"\non against off, {len(pairs)} pairs:")
    for what, field in (("wall", "wall_s"), ("CPU", "cpu_s")):
        ratios = sorted(getattr(a, field) / getattr(b, field) - 1 for a, b in pairs)
        least = min(getattr(a, field) for a in on) / min(getattr(b, field) for b in off) - 1
        print(
            f"  {what} time: median {statistics.median(ratios):+.2%} ({ratios[0]:+.2%} to "
            f"{ratios[-1]:+.2%}), least against least {least:+.2%}"
        )
    print(f"manager's time that the cache adds, of the steps' time without it: {added:+.3%}")
    print("\nlast round with the cache, by call:")
    calls = sides["on"].calls
    for name, ns in calls.ns.most_common(10):
        count = calls.calls[name]
        print(f"  {name:<22}{ns * 1e-6:>9.2f} ms{count:>9,} calls{ns / count / 1e3:>9.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kv-memory", default="256MiB", help="small enough that rounds evict")
    parser.add_argument("--kv-ram", default="0")
    parser.add_argument("--repeat", action="store_true", help="send each prompt twice")
    args = parser.parse_args()
    rng = random.Random(0)
    sides = {
        "on": Side(args, prefix_cache=True),
        "off": Side(args, prefix_cache=False),
    }
    for number in range(-1, args.rounds):
        prompts = [
            [rng.randrange(100, 40_000) for _ in range(args.prompt)] for _ in range(args.batch)
        ]
        names = ["on", "off"] if number % 2 else ["off", "on"]
        for name in names:
            sides[name].run(prompts, args.new, 2 if args.repeat else 1)
            if number < 0:
                sides[name].rounds.clear()
    report(sides)
    for side in sides.values():
        side.llm.close()


if __name__ == "__main__":
    main()
