"""How long does an agent's conversation take, with `kokuban serve` and with llama.cpp's server?

Run:    python benchmarks/peers/agent_trace.py MODEL.gguf --peers DIR [--rounds 5]
        `docs/peers.md` says how llama.cpp's server is built, and where in DIR it is looked for.
Reads:  the time of the whole conversation and of its first turn, and the ratios, Kokuban over
        llama.cpp: below 1 Kokuban is faster. `prompt tokens computed` is what the receipts say.

A conversation is 10 turns: a system prompt of 2,048 tokens and a question, then after each answer
of 64 tokens the result of a tool, 100 to 400 tokens, which takes no time itself. Every round has
another conversation, so its first turn is cold; each server may keep what it has computed. Both are
sent the same token ids; answers are forced by `logit_bias`, so that the next turn is known without
the text. Rounds alternate; the idle server has nothing to do.
"""

import argparse
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import httpx
from servers import Server, add_options, kinds_of, running
from worker import FIRST_ID, NUM_IDS

HTTP_TIMEOUT_S = 600
TURNS, SYSTEM, QUESTION, ANSWER = 10, 2048, 64, 64
TOOL_RESULT = (100, 400)
CONTEXT = 8192


@dataclass(frozen=True, slots=True)
class Conversation:
    """The prompt of each turn, and the token that its answer repeats."""

    prompts: list[list[int]]
    answers: list[int]

    @classmethod
    def random(cls, seed: int) -> "Conversation":
        """The same for the same seed."""
        draw = random.Random(seed)

        def tokens(count: int) -> list[int]:
            return [FIRST_ID + draw.randrange(NUM_IDS) for _ in range(count)]

        history = tokens(SYSTEM + QUESTION)
        prompts: list[list[int]] = []
        answers = tokens(TURNS)
        for answer in answers:
            prompts.append(list(history))
            history += [answer] * ANSWER + tokens(draw.randint(*TOOL_RESULT))
        return cls(prompts, answers)


@dataclass(frozen=True, slots=True)
class Trip:
    """What one conversation took with one server."""

    turn_s: list[float]
    computed: int | None
    """Prompt tokens that were not cached; None where the server does not say."""

    @property
    def total_s(self) -> float:
        return sum(self.turn_s)


def converse(server: Server, conversation: Conversation) -> Trip:
    """Ask turn by turn, as an agent does whose tools take no time."""
    turn_s: list[float] = []
    computed: int | None = 0
    with httpx.Client(base_url=server.url, timeout=HTTP_TIMEOUT_S) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for prompt, answer in zip(conversation.prompts, conversation.answers, strict=True):
            body = {
                "model": model, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0,
                "ignore_eos": True, "logit_bias": {str(answer): 100},
            }  # fmt: skip
            begin = time.perf_counter()
            response = client.post("/v1/completions", json=body)
            turn_s.append(time.perf_counter() - begin)
            usage = response.raise_for_status().json()["usage"]
            given = usage["prompt_tokens"], usage["completion_tokens"]
            if given != (len(prompt), ANSWER):
                sys.exit(f"{server.kind.name} counts {given}, not {(len(prompt), ANSWER)}")
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            if computed is not None:
                computed = None if cached is None else computed + len(prompt) - cached
    return Trip(turn_s, computed)


def report(servers: Sequence[Server], trips: dict[str, list[Trip]]) -> Iterator[str]:
    """What is printed at the end."""
    yield f"command: {shlex.join(['python', *sys.argv])}\n"
    yield "| server | conversation s (spread) | first turn s | later turn s | computed |"
    yield "|---|---:|---:|---:|---:|"
    for name, found in trips.items():
        totals = [trip.total_s for trip in found]
        first = statistics.median(trip.turn_s[0] for trip in found)
        later = statistics.median(time_s for trip in found for time_s in trip.turn_s[1:])
        spread = f"{statistics.median(totals):.2f} ({min(totals):.2f} to {max(totals):.2f})"
        computed = found[-1].computed
        yield f"| {name} | {spread} | {first:.2f} | {later:.3f} | {computed or 'not told'} |"
    if len(trips) == 2:
        ours, theirs = ([trip.total_s for trip in found] for found in trips.values())
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        yield (
            f"\nratio of the conversation, kokuban / llama.cpp: {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}), {len(ratios)} rounds\n"
        )
    for server in servers:
        yield f"- {server.kind.name}: {shlex.join(server.kind.command)}"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    kinds, missing = kinds_of(args, slots=1, tokens_each=CONTEXT)
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind)) for kind in kinds]
        trips: dict[str, list[Trip]] = {server.kind.name: [] for server in servers}
        for round_ in range(args.rounds):
            for server in servers if round_ % 2 == 0 else reversed(servers):
                print(f"round {round_}: {server.kind.name}", file=sys.stderr, flush=True)
                trips[server.kind.name].append(converse(server, Conversation.random(round_)))
        print("\n".join(report(servers, trips)))
        for name, reason in missing.items():
            print(f"- {name}: MISSING, {reason}")
    if args.json is not None:
        document = {name: [asdict(trip) for trip in found] for name, found in trips.items()}
        args.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
