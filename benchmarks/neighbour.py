"""What does a process that takes a core away from us cost?

Decode of one request, of a batch, and a prefill run in alternation with the cores to themselves
and with a neighbour: a process of equal priority, in a session of its own, that computes without
end on one of them. Its clock tells which share of our cores it got in each busy round. Throughput
should fall by that share and by no more (threshold: 15 % beyond it): an engine whose threads meet
at barriers loses many times as much, because each barrier waits until the system gives the core
back. Nothing else may run: what a neighbour takes from others is not lost to us (the load is
printed).

    python benchmarks/neighbour.py smollm2 --threads 2 --rounds 7

Printed for each workload: throughput with neighbour over throughput without (median, lowest and
highest round), what the neighbour's share leaves, and the one over the other.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from kokuban.engine.trial import Model, Trial, load_model

THRESHOLD = 0.85
"""Throughput beside a neighbour, over what the neighbour leaves."""

CONTEXT_TOKENS = 160
NUM_TOKENS = 512
ROUND_S = 0.6
"""Of each half of a round: many times what the system gives a process at once."""


class Neighbour:
    """A process that computes on one core, or stands still."""

    def __init__(self, core: int) -> None:
        # A session of its own: Linux shares a core between sessions first, then inside each.
        self._process = subprocess.Popen(
            [sys.executable, "-c", "while True: pass"], start_new_session=True
        )
        os.sched_setaffinity(self._process.pid, {core})
        self.pause()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def cpu_s(self) -> float:
        """Seconds that it has computed."""
        with open(f"/proc/{self._process.pid}/schedstat") as file:
            return int(file.read().split()[0]) * 1e-9

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True)
class Round:
    """One workload, once without and once with the neighbour."""

    kept: float
    """Throughput with it over throughput without."""

    left: float
    """The part of the cores in use that it did not take."""


def main() -> None:
    """Measure, print a table, and say whether the threshold holds."""
    args = parse()
    cores = sorted(os.sched_getaffinity(0))
    model = load_model(args.model, threads=args.threads)
    neighbour = Neighbour(cores[-1])
    num_cores = min(args.threads, len(cores))
    print(
        f"{args.model}, {args.threads} threads, {len(cores)} cores, neighbour on core {cores[-1]}, "
        f"load before {os.getloadavg()[0]:.1f}"
    )
    held = True
    try:
        for name, step in workloads(model):
            step()
            rounds = [
                measure(step, neighbour, num_cores, busy_first=bool(i % 2))
                for i in range(args.rounds)
            ]
            held = report(name, rounds) and held
    finally:
        neighbour.end()
    if not held:
        raise SystemExit(
            f"more was lost than the neighbour took: below {THRESHOLD} of what it left"
        )


def workloads(model: Model) -> list[tuple[str, Callable[[], object]]]:
    """What is run, each with a function that does one step of it."""
    found: list[tuple[str, Callable[[], object]]] = []
    for batch, num_tokens in ((1, 8000), (32, 1200)):
        trial = Trial(
            model, "bf16", num_requests=batch, num_tokens=num_tokens, first_token=CONTEXT_TOKENS
        )
        trial.start_anywhere()
        found.append((f"decode, {batch} at a time", trial.time_step))
    prefill = Trial(model, "bf16", num_requests=1, num_tokens=NUM_TOKENS + 1)
    prompt = [i * 7919 % 20_000 for i in range(NUM_TOKENS)]
    found.append((f"prefill of {NUM_TOKENS}", lambda: prefill.answer([prompt], 1)))
    return found


def measure(
    step: Callable[[], object], neighbour: Neighbour, num_cores: int, *, busy_first: bool
) -> Round:
    """Steps for some time without and with the neighbour, in either order."""
    rates: dict[bool, float] = {}
    share = 0.0
    for busy in (busy_first, not busy_first):
        if busy:
            neighbour.resume()
        cpu_s, begin = neighbour.cpu_s(), time.perf_counter()
        count, wall_s = 0, 0.0
        while wall_s < ROUND_S:
            step()
            count += 1
            wall_s = time.perf_counter() - begin
        rates[busy] = count / wall_s
        if busy:
            share = (neighbour.cpu_s() - cpu_s) / (wall_s * num_cores)
            neighbour.pause()
    return Round(rates[True] / rates[False], 1 - share)


def report(name: str, rounds: list[Round]) -> bool:
    """Print one line; whether the threshold holds."""
    kept = sorted(each.kept for each in rounds)
    left = statistics.median(each.left for each in rounds)
    of_left = statistics.median(each.kept / each.left for each in rounds)
    print(
        f"{name:22} keeps {statistics.median(kept):.2f} [{kept[0]:.2f} .. {kept[-1]:.2f}], "
        f"the neighbour leaves {left:.2f}: {of_left:.2f} of that"
    )
    return of_left >= THRESHOLD


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
