"""How do `kokuban serve` and llama.cpp's server fare under the same arrivals?

Run:    python benchmarks/peers/serve.py MODEL.gguf --peers DIR [--requests 100] [--rounds 3]
        `docs/peers.md` says how llama.cpp's server is built, and where in DIR it is looked for.
Reads:  output tokens a second and the percentiles of TTFT and ITL of both, and their ratios, from
        Kokuban's side: more throughput is above 1, less waiting is below 1.

First Kokuban is saturated: 64 clients that ask again at once. Then requests arrive at random times
(Poisson), 70 % as many a second as it answered then; at most 64 are under way, and what waits for a
place counts as waiting. Prompts are 128 to 1,024 random token ids, answers 16 to 256 tokens, greedy
and never ended early. The client is `kokuban bench serve`, for both. Rounds alternate; the idle
server has nothing to do.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers import Server, add_options, kinds_of, running

CLIENTS, LOAD = 64, 0.7
PROMPT, ANSWER = "128:1024", "16:256"
TOKENS_EACH = 1024 + 256

FIGURES = {
    "output tok/s": ("output_tok_s", ""),
    "TTFT p50 s": ("ttft_s", "p50"),
    "TTFT p99 s": ("ttft_s", "p99"),
    "ITL p50 s": ("itl_s", "p50"),
    "ITL p99 s": ("itl_s", "p99"),
    "E2E p50 s": ("e2e_s", "p50"),
}


def load(server: Server, rate: float, requests: int, seed: int) -> dict[str, Any]:
    """What `kokuban bench serve` writes about one run."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "run.json"
        command = [
            sys.executable, "-m", "kokuban", "bench", "serve", "--base-url", server.url,
            "--endpoint", "completions", "--token-ids", "--rate", str(rate),
            "--requests", str(requests), "--max-concurrency", str(CLIENTS), "--seed", str(seed),
            "--prompt-tokens", PROMPT, "--output-tokens", ANSWER, "--json", str(file),
        ]  # fmt: skip
        print(shlex.join(command[1:]), file=sys.stderr, flush=True)
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def saturation(run: dict[str, Any]) -> float:
    """Requests a second between the first and the last quarter of the ends: fully loaded."""
    ends = sorted(each["end_s"] for each in run["requests"] if each["error"] is None)
    begin, end = len(ends) // 4, 3 * len(ends) // 4
    return float((end - begin) / (ends[end] - ends[begin]))


def value(run: dict[str, Any], figure: str) -> float:
    """One figure of a run."""
    name, percentile = FIGURES[figure]
    found = run["figures"][name]
    return float(found[percentile] if percentile else found)


def table(runs: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Medians over the rounds, and the ratios round by round."""
    names = list(runs)
    yield f"| figure | {' | '.join(names)} | ratio (spread) |"
    yield "|---|" + "---:|" * (len(names) + 1)
    for figure in FIGURES:
        values = {name: [value(run, figure) for run in runs[name]] for name in names}
        cells = [f"{statistics.median(each):,.3f}" for each in values.values()]
        ratio = "–"
        if len(names) == 2:
            ours, theirs = values.values()
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        yield f"| {figure} | {' | '.join(cells)} | {ratio} |"
    failed = [
        str(sum(run["figures"]["sent"] - run["figures"]["answered"] for run in runs[name]))
        for name in names
    ]
    yield f"| failed requests | {' | '.join(failed)} | |"


def report(
    servers: Sequence[Server], runs: dict[str, list[dict[str, Any]]], rate: float, full: float
) -> Iterator[str]:
    """What is printed at the end."""
    yield f"command: {shlex.join(['python', *sys.argv])}"
    facts = runs["kokuban"][0]["facts"]
    yield f"{facts['cpu']}, Kokuban {facts['kokuban']}"
    yield f"saturation {full:.2f} requests/s, arrivals {rate:.2f} requests/s\n"
    yield from table(runs)
    yield ""
    for server in servers:
        yield (
            f"- {server.kind.name}: ready after {server.ready_s:.2f} s, "
            f"{server.peak_mb():,.0f} MB at most; {shlex.join(server.kind.command)}"
        )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--requests", type=int, default=100, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0, help="arrivals a second; 0: found out")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    kinds, missing = kinds_of(args, slots=CLIENTS, tokens_each=TOKENS_EACH)
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind)) for kind in kinds]
        full = saturation(load(servers[0], float("inf"), args.requests, seed=1_000))
        rate = args.rate or LOAD * full
        runs: dict[str, list[dict[str, Any]]] = {server.kind.name: [] for server in servers}
        for round_ in range(args.rounds):
            for server in servers if round_ % 2 == 0 else reversed(servers):
                runs[server.kind.name].append(load(server, rate, args.requests, seed=round_))
        print("\n".join(report(servers, runs, rate, full)))
        for name, reason in missing.items():
            print(f"- {name}: MISSING, {reason}")
    if args.json is not None:
        args.json.write_text(json.dumps({"rate": rate, "saturation": full, "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
