"""Is Kokuban as fast as llama.cpp on the same file with the same threads?

Run:    python benchmarks/peers/llama_cpp.py MODEL.gguf --peer-python PATH [--rounds 5]
        PATH is the python of an environment with `pip install llama-cpp-python==0.3.36`.
Reads:  the ratios (Kokuban over llama.cpp; above 1 Kokuban is faster), medians over the rounds. The
        times themselves depend on the machine.

Each engine is a process of its own that loads the model once and then waits for orders; rounds
alternate between the two, so that a slow spell of the machine falls on both. An idle engine sleeps.
Prompts are random token ids, decoding is greedy and never ends early: both do the same work.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CASES: dict[str, dict[str, int]] = {
    "prefill 512": {"prompt": 512, "new": 1},
    "prefill 2048": {"prompt": 2048, "new": 1},
    "decode B=1": {"prompt": 64, "new": 64},
}


class Engine:
    """A worker process: one JSON line in, one JSON line out."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        self.version = json.loads(self._line())["version"]

    def seconds(self, case: dict[str, int]) -> tuple[float, float]:
        """Until the first token, and from there to the last."""
        self._in.write(json.dumps(case) + "\n")
        self._in.flush()
        found = json.loads(self._line())
        return found["first"], found["rest"]

    def close(self) -> None:
        self._in.close()
        self._process.wait()

    def _line(self) -> str:
        while line := self._out.readline():
            if line.startswith("{"):
                return line
        raise SystemExit(f"{self.name} ended without an answer")


def speed(case: dict[str, int], first: float, rest: float) -> float:
    """Tokens a second of the part that the case is about."""
    return (case["new"] - 1) / rest if case["new"] > 1 else case["prompt"] / first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-python", required=True, help="python that has llama_cpp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    options = [str(args.model), str(args.threads)]
    ours = Engine("kokuban", [sys.executable, str(HERE / "worker_kokuban.py"), *options])
    # -P: this file must not stand in for the package of its name.
    peer = Engine(
        "llama.cpp", [args.peer_python, "-P", str(HERE / "worker_llama_cpp.py"), *options]
    )
    print(
        f"{args.model.name}, {args.threads} threads, {platform.processor() or platform.machine()}"
    )
    print(f"kokuban {ours.version}; llama-cpp-python {peer.version}; {args.rounds} rounds\n")
    print(f"{'case':<14}{'kokuban':>10}{'llama.cpp':>11}{'ratio':>8}   spread of the ratio")
    for name, case in CASES.items():
        speeds: dict[str, list[float]] = {ours.name: [], peer.name: []}
        for round_ in range(args.rounds + 1):  # the first warms up
            for engine in (ours, peer):
                value = speed(case, *engine.seconds(case))
                if round_:
                    speeds[engine.name].append(value)
        ratios = [a / b for a, b in zip(speeds[ours.name], speeds[peer.name], strict=True)]
        a, b = (statistics.median(values) for values in speeds.values())
        print(
            f"{name:<14}{a:>10.1f}{b:>11.1f}{statistics.median(ratios):>8.2f}"
            f"   {min(ratios):.2f} to {max(ratios):.2f}"
        )
    ours.close()
    peer.close()


if __name__ == "__main__":
    main()
