"""What does speculation give where a text repeats itself, and does it cost elsewhere?

Wanted: at one request at a time at least twice the tokens a second on copy-heavy prompts (edit this
code, repeat this JSON), about as many on a text that says new things, and the same text always. Two
engines of one model, with speculation and without, answer each prompt in alternation; the figure is
the ratio of their decoding speeds ((output tokens - 1) / seconds after the first token), the median
over the rounds, with the lowest and the highest.

    python benchmarks/speculate.py smollm2 --speculate ngram --rounds 5
    python benchmarks/speculate.py smollm2-1.7b --speculate smollm2 --json results/s.json
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig
from kokuban.engine.llm import ChoiceOutput

CODE = '''\
class Inventory:
    """Counts of the things in a store."""

    def __init__(self):
        self.items = {}

    def add(self, name, count):
        if count < 0:
            raise ValueError("count must not be negative")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count):
        if name not in self.items:
            raise KeyError(name)
        if self.items[name] < count:
            raise ValueError("there are not so many of them")
        self.items[name] = self.items[name] - count

    def total(self):
        return sum(self.items.values())
'''

JSON = """\
{"id": 4711, "name": "Mara Lindqvist", "email": "mara.lindqvist@example.org", "roles": ["editor",
"reviewer"], "address": {"street": "12 Harbour Road", "city": "Kalmar", "postcode": "392 31"},
"orders": [{"sku": "BK-2201", "title": "Field Notes", "quantity": 3, "price": 12.5}, {"sku":
"PN-0087", "title": "Fountain Pen", "quantity": 1, "price": 48.0}, {"sku": "IN-1140", "title":
"Blue Ink", "quantity": 2, "price": 7.25}], "active": true, "since": "2019-04-23"}
"""

PROMPTS = {
    "edit code": f"Rename the class Inventory to Store in this code and change nothing else. "
    f"Answer with the whole code only.\n\n```python\n{CODE}```",
    "repeat JSON": f"Repeat this JSON exactly as it is, and nothing else:\n\n{JSON}",
    "new text": "Write a short story about a lighthouse keeper and a stranded whale.",
}


@dataclass(frozen=True)
class Answer:
    """One answer and how fast it came."""

    text: str
    token_ids: tuple[int, ...]
    tokens_per_s: float
    drafted: int
    accepted: int


def ask(llm: LLM, prompt: str, params: SamplingParams) -> Answer:
    """One request, alone."""
    [choice] = llm.chat([{"role": "user", "content": prompt}], params).choices
    return answer(choice)


def answer(choice: ChoiceOutput) -> Answer:
    """What a choice tells of itself."""
    usage = choice.usage
    assert usage is not None, "an answer without a receipt"
    return Answer(
        choice.text,
        tuple(choice.token_ids),
        (usage.output_tokens - 1) / max(usage.decode_s, 1e-9),
        usage.drafted_tokens,
        usage.accepted_tokens,
    )


def compare(
    plain: LLM, speculating: LLM, prompt: str, params: SamplingParams, rounds: int
) -> dict[str, float]:
    """Alternate, after one round that does not count; texts must be equal to the token."""
    pairs = []
    for count in range(rounds + 1):
        order = [plain, speculating] if count % 2 else [speculating, plain]
        answers = {llm: ask(llm, prompt, params) for llm in order}
        without, with_drafts = answers[plain], answers[speculating]
        assert with_drafts.token_ids == without.token_ids, "speculation changed the tokens"
        assert with_drafts.text == without.text, "speculation changed the text"
        pairs.append((without, with_drafts))
    pairs = pairs[1:]
    ratios = [with_drafts.tokens_per_s / without.tokens_per_s for without, with_drafts in pairs]
    drafted = sum(with_drafts.drafted for _, with_drafts in pairs)
    return {
        "tokens": len(pairs[0][0].token_ids),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "acceptance": sum(each.accepted for _, each in pairs) / drafted if drafted else 0.0,
        "from drafts": statistics.mean(each.accepted / len(each.token_ids) for _, each in pairs),
        "plain tok/s": statistics.median(without.tokens_per_s for without, _ in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--speculate", default="ngram", help="ngram, or a draft model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompts", default=",".join(PROMPTS), help="which, by name")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    params = SamplingParams(max_tokens=options.max_tokens, temperature=options.temperature, seed=1)
    figures: dict[str, dict[str, float]] = {}
    with (
        LLM(options.model, runtime=RuntimeConfig(threads=options.threads)) as plain,
        LLM(
            options.model,
            runtime=RuntimeConfig(threads=options.threads, speculate=options.speculate),
        ) as speculating,
    ):
        for name in options.prompts.split(","):
            row = compare(plain, speculating, PROMPTS[name], params, options.rounds)
            figures[name] = row
            print(
                f"{name:12} {row['tokens']:4.0f} tokens: {row['ratio']:.2f}x "
                f"({row['lowest']:.2f} to {row['highest']:.2f}), "
                f"{row['acceptance']:.0%} of the drafts right, "
                f"{row['from drafts']:.0%} of the tokens from drafts; "
                f"without: {row['plain tok/s']:.1f} tok/s",
                flush=True,
            )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"command": sys.argv, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
