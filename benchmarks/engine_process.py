"""What does an engine in a process of its own cost, or save, beside one on a thread?

Two servers of one model, `--engine thread` and `--engine process`, get the same load in
alternation: streams that begin together, with random prompts that are new in every round. The
client is this process, which counts bytes and parses nothing (`http_overhead.client`).

    python benchmarks/engine_process.py smollm2 --streams 64 --prompt 16 --output 32 --rounds 5

Says, as medians over the rounds: output tokens/s, time to the first token, gaps between two events
at p50 and p99, for both; then the ratios process/thread, each the median of the rounds' ratios.
"""

import argparse
import json
import random
import statistics
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from http_overhead import VOCAB, client
from peers.servers import kokuban, running

KINDS = ("thread", "process")
FIGURES = ("tok_s", "ttft_ms", "gap_ms", "worst_gap_ms")


def measure(url: str, given: argparse.Namespace, output: int) -> dict[str, float]:
    """One round."""
    common = {
        "model": "m",
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    prompts = [random.choices(range(10, VOCAB), k=given.prompt) for _ in range(given.streams)]
    bodies = [json.dumps({**common, "prompt": ids}).encode() for ids in prompts]
    found = client(("127.0.0.1", urlsplit(url).port or 0), bodies, output)
    return {**found, "tok_s": found["tokens"] / found["wall_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each engine")
    given = parser.parse_args()

    rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with ExitStack() as stack:
        urls = {}
        for kind in KINDS:
            options = ("--engine", kind, "--served-model-name", "m")
            server = running(kokuban(given.model, given.threads, options))
            urls[kind] = stack.enter_context(server).url
            measure(urls[kind], given, 4)
        for number in range(given.rounds):
            for kind in KINDS if number % 2 else reversed(KINDS):
                rounds[kind].append(measure(urls[kind], given, given.output))
    print(
        f"{given.streams} streams of {given.prompt} + {given.output} tokens, {given.rounds} rounds"
    )
    print(f"{'':8}" + "".join(f"{name:>14}" for name in FIGURES))
    for kind in KINDS:
        medians = [statistics.median(each[name] for each in rounds[kind]) for name in FIGURES]
        print(f"{kind:8}" + "".join(f"{value:14,.1f}" for value in medians))
    pairs = list(zip(rounds["process"], rounds["thread"], strict=True))
    ratios = [statistics.median(a[name] / b[name] for a, b in pairs) for name in FIGURES]
    print(f"{'ratio':8}" + "".join(f"{value:14.3f}" for value in ratios))


if __name__ == "__main__":
    main()
