"""Is Kokuban's n-gram speculation ahead of a peer's own, where a text repeats its prompt?

Run:    python benchmarks/peers/lookup.py MODEL.gguf --peers DIR [--rounds 5]
        DIR as in `docs/peers.md`; the peer is llama-cpp-python with LlamaPromptLookupDecoding,
        guessing 2 and 10 tokens at a time (it advises 2 on CPUs, 10 is its default), and without.
Reads:  tokens a second after the first, Kokuban (`--speculate ngram`) over the best of the three.

The prompts are those of `benchmarks/speculate.py`; both read the same token ids, decode greedily
and take turns. The texts are compared with each engine's own without speculation: ours must be
equal, and where the two engines part is said.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kokuban import LLM, SamplingParams  # noqa: E402
from kokuban.core.config import RuntimeConfig  # noqa: E402
from speculate import PROMPTS  # noqa: E402

DRAFTS = (0, 2, 10)


class Lookup:
    """The peer's process."""

    def __init__(self, python: Path, model: Path, threads: int, drafts: int) -> None:
        self.name = f"llama-cpp-python, lookup of {drafts}" if drafts else "llama-cpp-python"
        self._process = subprocess.Popen(
            [str(python), str(HERE / "worker_lookup.py"), str(model), str(threads), str(drafts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts = self._line()

    def ask(self, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        """Its tokens, and tokens a second after the first."""
        assert self._process.stdin is not None
        case = {"prompt": prompt, "max_tokens": max_tokens}
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer = self._line()
        return answer["tokens"], (len(answer["tokens"]) - 1) / max(answer["decode_s"], 1e-9)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"{self.name} ended")


def ask_ours(llm: LLM, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
    """Ours, the same way."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    [choice] = llm.generate([prompt], params)[0].choices
    assert choice.usage is not None, "an answer without a receipt"
    speed = (choice.usage.output_tokens - 1) / max(choice.usage.decode_s, 1e-9)
    return list(choice.token_ids), speed


def common(ours: list[int], theirs: list[int]) -> int:
    """How many tokens from the first are the same."""
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def compare(
    llm: LLM, peers: list[Lookup], prompt: list[int], max_tokens: int, rounds: int
) -> dict[str, Any]:
    """Rounds in turn, after one that does not count."""
    speeds: dict[str, list[float]] = {}
    same = 0
    for number in range(rounds + 1):
        order = [None, *peers] if number % 2 else [*peers, None]
        texts = {}
        for peer in order:
            name = peer.name if peer else "kokuban"
            tokens, speed = (
                peer.ask(prompt, max_tokens) if peer else ask_ours(llm, prompt, max_tokens)
            )
            texts[name] = tokens
            if number:
                speeds.setdefault(name, []).append(speed)
        same = common(texts["kokuban"], texts["llama-cpp-python"])
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    best = max((name for name in medians if name != "kokuban"), key=lambda name: medians[name])
    ratios = [a / b for a, b in zip(speeds["kokuban"], speeds[best], strict=True)]
    return {
        "best peer": best,
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "tokens": len(texts["kokuban"]),
        "same as llama.cpp": same,
        "tok/s": medians,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    python = args.peers / "llama-cpp" / "bin" / "python"
    peers = [Lookup(python, args.model, args.threads, drafts) for drafts in DRAFTS]
    found = {}
    runtime = RuntimeConfig(threads=args.threads, speculate="ngram")
    with LLM(str(args.model), runtime=runtime) as llm:
        for name, text in PROMPTS.items():
            prompt = llm.engine.encode_chat([{"role": "user", "content": text}])
            row = found[name] = compare(llm, peers, prompt, args.max_tokens, args.rounds)
            print(
                f"{name}: {row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f}) times "
                f"{row['best peer']}; {row['tokens']} tokens, the first {row['same as llama.cpp']} "
                f"as llama.cpp says them; tok/s "
                + ", ".join(f"{peer} {speed:.0f}" for peer, speed in row["tok/s"].items()),
                flush=True,
            )
    for peer in peers:
        peer.close()
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
