"""Are JSON schemas followed to the letter, and what do masks cost?

Run:    python benchmarks/json_schema.py SUITE [--model MODEL]
        SUITE: a checkout of JSON-Schema-Test-Suite; MODEL: whose vocabulary is masked.
Reads:  of the groups that are accepted (more than llguidance accepts alone) every valid instance
        passes the masks and every invalid one is blocked; the exit code is 1 where one is not. The
        times of masks, token by token, with the tokens of the model.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from tools.json_schema_suite import Group, groups

from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.sampling.grammar import CompiledGrammar, GrammarCompiler
from kokuban.text.grammar import json_schema_grammar
from kokuban.text.load import load_text
from kokuban.text.tokenizer import Tokenizer
from kokuban.weights.source import open_source


class Walk:
    """Leads texts through masks, and keeps the times."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ends = tokenizer.end_ids
        self._end = min(self._ends)
        self.mask_s: list[float] = []
        self.compile_s: list[float] = []

    def compile(self, compiler: GrammarCompiler, schema: object) -> CompiledGrammar:
        grammar = json_schema_grammar(schema)
        begun = time.perf_counter()
        compiled = compiler.compile(grammar)
        self.compile_s.append(time.perf_counter() - begun)
        return compiled

    def passes(self, grammar: CompiledGrammar, text: str) -> bool:
        """Whether every token may stand where it stands. Of a text that is forced a mask allows
        only one way to write it in tokens: there the matcher is asked."""
        request = Request(id=RequestId("r"), prompt_token_ids=(1,), params=SamplingParams())
        constraint = grammar.begin(request)
        mask = np.zeros((1, constraint.width), np.uint32)
        ids = self._tokenizer.encode(text, add_bos=False, parse_special=False)
        for token in [*ids, self._end]:
            begun = time.perf_counter()
            constraint.fill(mask)
            self.mask_s.append(time.perf_counter() - begun)
            allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")))
            if token == self._end or allowed <= self._ends:
                return token == self._end and token in allowed
            constraint.append(token)
            if constraint.error:
                return False
        return False


def mistakes_of(group: Group, walk: Walk, compiler: GrammarCompiler) -> list[str]:
    """Instances that are blocked although valid, or let through although not.

    Raises:
        RequestError: the schema is refused.
    """
    grammar = walk.compile(compiler, group.schema)
    return [
        f"{group.name}: {instance.name}"
        for instance in group.instances
        if not (instance.only_noted or (instance.valid and instance.too_long))
        and any(walk.passes(grammar, text) for text in instance.texts) != instance.valid
    ]


def accepted_alone(schema: object) -> bool:
    """Whether llguidance would take the schema as it is."""
    return not LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="a model file or folder")
    args = parser.parse_args()

    tokenizer = load_text(open_source(args.model).tokenizer_source()).tokenizer
    compiler = GrammarCompiler(tokenizer, tokenizer.end_ids, tokenizer.vocab_size)
    walk = Walk(tokenizer)
    compiler.compile(json_schema_grammar(True))  # the vocabulary is read once
    num_groups = num_alone = num_accepted = 0
    mistakes: list[str] = []
    for group in groups(args.suite):
        num_groups += 1
        num_alone += accepted_alone(group.schema)
        try:
            mistakes += mistakes_of(group, walk, compiler)
        except RequestError:
            continue
        num_accepted += 1

    print(f"{num_groups} groups: {num_accepted} accepted, by llguidance alone {num_alone}")
    for name, values in (("masks", walk.mask_s), ("compiled", walk.compile_s)):
        quantiles = statistics.quantiles(values, n=100)
        print(
            f"{len(values):>7,} {name:<9} median {statistics.median(values) * 1e6:7.0f} us"
            f"  p99 {quantiles[98] * 1e6:7.0f} us  longest {max(values) * 1e6:7.0f} us"
        )
    print(f"{len(mistakes)} instances are judged wrong", *mistakes, sep="\n  ")
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
