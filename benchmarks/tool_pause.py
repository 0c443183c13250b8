"""What is it worth to tell the server that a tool runs?

Some agents, each with a conversation of its own, talk to one server over HTTP whose pool holds only
a few of them. After each answer their tool takes some seconds, in which others need the pool. Three
servers: without anything below the pool, with host memory, and with host memory and
`POST /v1/sessions/{id}/pause` after each answer. The receipts say what was computed, and where the
KV of a turn came from.

    nice -n 5 python benchmarks/tool_pause.py smollm2 --agents 8 --pool-agents 2 --tool-s 4

Token ids are random below --vocab, and answers are forced by `logit_bias`, so that their ids are
known without the text. --kv-bytes is what a token's K and V take: 23,040 for smollm2 in bf16.
Options after `--` go to all servers.
"""

import argparse
import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from agent_loop import server

HTTP_TIMEOUT_S = 600
BLOCK = 16


@dataclass(frozen=True)
class Load:
    """What each agent does."""

    turns: int
    prompt: int
    """Tokens of the first turn."""

    new: int
    """Tokens that each further turn adds."""

    answer: int
    tool_s: float
    vocab: int

    @property
    def max_tokens(self) -> int:
        """Of a whole conversation."""
        return self.prompt + (self.turns - 1) * (self.new + self.answer) + self.answer


@dataclass(frozen=True)
class Turn:
    """One request by its receipt, and the seconds until its first token."""

    index: int
    computed: int
    """Prompt tokens that went through the model."""

    again: int
    """Those of them that the turn before had computed."""

    cached_pool: int
    cached_ram: int
    resumed_from: str
    ttft_s: float


class Agent:
    """One conversation, the same for the same seed."""

    def __init__(self, seed: int, load: Load, url: str, *, pauses: bool) -> None:
        self._rng = random.Random(seed)
        self._load = load
        self._pauses = pauses
        self._name = f"agent-{seed}"
        self._client = httpx.Client(base_url=url, timeout=HTTP_TIMEOUT_S)
        self.turns: list[Turn] = []
        self.places: Counter[str] = Counter()

    def run(self) -> None:
        with self._client:
            said: list[int] = []
            known = 0
            for index in range(self._load.turns):
                num_new = self._load.new if index else self._load.prompt
                said += [self._token() for _ in range(num_new)]
                answer = self._token()
                self.turns.append(self._ask(index, said, answer, known))
                said += [answer] * self._load.answer
                known = len(said) - 1
                if index < self._load.turns - 1:
                    self._use_tool()

    def _token(self) -> int:
        return self._rng.randrange(100, self._load.vocab)

    def _use_tool(self) -> None:
        if self._pauses:
            response = self._client.post(
                f"/v1/sessions/{self._name}/pause",
                json={"expected_ms": round(self._load.tool_s * 1e3)},
            )
            response.raise_for_status()
            self.places[response.json()["place"]] += 1
        time.sleep(self._load.tool_s)

    def _ask(self, index: int, prompt: Sequence[int], answer: int, known: int) -> Turn:
        body = {
            "model": "m",
            "prompt": list(prompt),
            "max_tokens": self._load.answer,
            "temperature": 0,
            "ignore_eos": True,
            "logit_bias": {str(answer): 100},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        begin, first_s, usage = time.perf_counter(), 0.0, None
        with self._client.stream(
            "POST", "/v1/completions", json=body, headers={"X-Session-ID": self._name}
        ) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                first_s = first_s or time.perf_counter() - begin
                usage = json.loads(line[6:]).get("usage") or usage
        assert usage is not None, "no receipt"
        receipt, cached = usage["kokuban"], usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(
            index,
            computed=usage["prompt_tokens"] - cached + receipt["recomputed_tokens"],
            again=max(0, known - cached),
            cached_pool=receipt["cached_pool_tokens"],
            cached_ram=receipt["cached_ram_tokens"],
            resumed_from=receipt["resumed_from"] or "recompute",
            ttft_s=first_s,
        )


def measure(url: str, num_agents: int, load: Load, *, pauses: bool) -> list[Agent]:
    """All agents at once, each in a thread."""
    agents = [Agent(seed, load, url, pauses=pauses) for seed in range(num_agents)]
    threads = [threading.Thread(target=agent.run) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = [agent for agent in agents if len(agent.turns) < load.turns]
    assert not lost, f"{len(lost)} agents did not come to their end"
    return agents


def show(name: str, agents: Sequence[Agent], wall_s: float) -> None:
    turns = [turn for agent in agents for turn in agent.turns]
    later = [turn for turn in turns if turn.index]
    places = sum((agent.places for agent in agents), Counter())
    origins = Counter(turn.resumed_from for turn in later)
    ttfts = sorted(turn.ttft_s * 1e3 for turn in later)
    print(f"\n{name}")
    print(f"  prefill tokens computed   {sum(turn.computed for turn in turns):>10,}")
    print(f"  of them computed before   {sum(turn.again for turn in turns):>10,}")
    print(f"  cached: pool, host memory {sum(t.cached_pool for t in turns):>10,}"
          f"{sum(t.cached_ram for t in turns):>10,}")  # fmt: skip
    print(f"  resumed from              {dict(origins)}")
    if places:
        print(f"  paused: KV is             {dict(places)}")
    print(f"  TTFT after a tool, median {statistics.median(ttfts):>10.1f} ms   "
          f"({ttfts[0]:.1f} to {ttfts[-1]:.1f})")  # fmt: skip
    print(f"  seconds in all            {wall_s:>10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--pool-agents", type=int, default=2, help="agents that the pool holds")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=400)
    parser.add_argument("--new", type=int, default=60)
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--tool-s", type=float, default=4.0)
    parser.add_argument("--vocab", type=int, default=40_000)
    parser.add_argument("--kv-bytes", type=int, default=23_040, help="of a token")
    parser.add_argument("--kv-ram", default="1GiB")
    parser.add_argument("options", nargs="*", help="of all servers")
    args = parser.parse_args()
    load = Load(args.turns, args.prompt, args.new, args.answer, args.tool_s, args.vocab)
    blocks = args.pool_agents * -(-load.max_tokens // BLOCK)
    options = ["--kv-memory", str(blocks * BLOCK * args.kv_bytes), *args.options]
    least = args.agents * (args.prompt + (args.turns - 1) * (args.new + 1))
    print(
        f"{args.agents} agents of {load.max_tokens} tokens in a pool of {blocks} blocks of "
        f"{BLOCK}; {least:,} prompt tokens are new"
    )
    runs: list[tuple[str, list[str], bool]] = [
        ("nothing below the pool", [], False),
        ("host memory", ["--kv-ram", args.kv_ram], False),
        ("host memory and pauses", ["--kv-ram", args.kv_ram], True),
    ]
    for name, more, pauses in runs:
        with server(args.model, [*options, *more]) as url:
            begin = time.perf_counter()
            agents = measure(url, args.agents, load, pauses=pauses)
            show(name, agents, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
