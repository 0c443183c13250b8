"""What does a turn of an agent's loop cost when its history is cached?

Each turn sends the whole history and adds 64 tokens to it, answer included. Cached, N turns compute
N units of 64 tokens; from the start every time they compute N (N + 1) / 2. Two servers answer over
HTTP, one with the prefix cache and one without. The receipts in `usage` say what was computed, and
the last turn's time to its first token is measured in alternation. The answers' tokens are forced
by `logit_bias`, so that their ids are known without the text.

    nice -n 5 python benchmarks/agent_loop.py smollm2 --turns 10 --rounds 7

Token ids are random below --vocab.
"""

import argparse
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

UNIT = 64
HTTP_TIMEOUT_S = 600


@dataclass(frozen=True)
class Turn:
    """One request, by its receipt, and the seconds until its first token."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float

    @property
    def computed(self) -> int:
        """Tokens that went through the model: the last one of an answer does not."""
        return self.prompt_tokens - self.cached_tokens + self.completion_tokens - 1


@contextmanager
def server(model: str, options: Sequence[str]) -> Iterator[str]:
    """The address of a `kokuban serve` of its own."""
    command = [sys.executable, "-m", "kokuban", "serve", model, "--port", "0",
               "--served-model-name", "m", *options]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = next(
            (match for line in process.stdout if (match := re.search(r"ready at (http\S+)", line))),
            None,
        )
        if ready is None:
            sys.exit("the server did not start")
        yield ready[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def ask(url: str, prompt: Sequence[int], answer: int, num_answer: int, salt: str) -> Turn:
    """One completion, streamed."""
    body = {
        "model": "m",
        "prompt": list(prompt),
        "max_tokens": num_answer,
        "temperature": 0,
        "ignore_eos": True,
        "logit_bias": {str(answer): 100},
        "cache_salt": salt,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, first_s, usage = time.perf_counter(), 0.0, None
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body, timeout=HTTP_TIMEOUT_S
    ) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or time.perf_counter() - begin
            usage = json.loads(line[6:]).get("usage") or usage
    assert usage is not None, "no receipt"
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Turn(usage["prompt_tokens"], cached, usage["completion_tokens"], first_s)


class Agent:
    """One conversation: the same for the same seed."""

    def __init__(self, seed: int, *, num_turns: int, num_answer: int, vocab: int) -> None:
        rng = random.Random(seed)
        self._num_answer = num_answer
        self._salt = f"agent-{seed}"
        self.answers = [rng.randrange(100, vocab) for _ in range(num_turns)]
        self.prompts: list[list[int]] = []
        history: list[int] = []
        for answer in self.answers:
            # The last token that was said is computed as part of the next prompt.
            num_new = UNIT - num_answer + (0 if history else 1)
            history += [rng.randrange(100, vocab) for _ in range(num_new)]
            self.prompts.append(list(history))
            history += [answer] * num_answer

    def turn(self, url: str, index: int) -> Turn:
        return ask(url, self.prompts[index], self.answers[index], self._num_answer, self._salt)


def show(name: str, turns: Sequence[Turn]) -> None:
    total = sum(turn.computed for turn in turns)
    print(f"\n{name}\n{'turn':>5}{'prompt':>9}{'cached':>9}{'computed':>10}{'TTFT ms':>10}")
    shown = [i for i in range(len(turns)) if len(turns) <= 12 or i < 3 or i % 10 == 9]
    for i in shown:
        turn = turns[i]
        print(
            f"{i + 1:>5}{turn.prompt_tokens:>9,}{turn.cached_tokens:>9,}{turn.computed:>10,}"
            f"{turn.ttft_s * 1e3:>10.1f}"
        )
    print(f"computed in all: {total:,} tokens = {total / UNIT:,.2f} units of {UNIT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--answer", type=int, default=8, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=40_000)
    parser.add_argument(
        "--last-only", action="store_true", help="without cache ask the last turn only"
    )
    parser.add_argument("--threads", type=int, default=0, help="of each server")
    args = parser.parse_args()
    options = ["--threads", str(args.threads)]
    last = args.turns - 1
    with (
        server(args.model, options) as cached,
        server(args.model, ["--no-prefix-cache", *options]) as plain,
    ):
        times: dict[str, list[float]] = {"on": [], "off": []}
        for number in range(args.rounds):
            agent = Agent(number, num_turns=args.turns, num_answer=args.answer, vocab=args.vocab)
            on = [agent.turn(cached, i) for i in range(args.turns)]
            indices = range(last if args.last_only or number else 0, args.turns)
            off = [agent.turn(plain, i) for i in indices]
            times["on"].append(on[last].ttft_s)
            times["off"].append(off[-1].ttft_s)
            if number == 0:
                show("with the prefix cache", on)
                show("without it" + (", last turn only" if args.last_only else ""), off)
            assert sum(turn.computed for turn in on) == args.turns * UNIT
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\nTTFT of turn {args.turns}, median of {args.rounds} alternating rounds:")
    for name, values in times.items():
        print(
            f"  cache {name:<4}{medians[name] * 1e3:>10.1f} ms   "
            f"({min(values) * 1e3:.1f} to {max(values) * 1e3:.1f})"
        )
    print(f"  ratio off : on = {medians['off'] / medians['on']:.1f}")


if __name__ == "__main__":
    main()
