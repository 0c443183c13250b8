"""The JSON-Schema-Test-Suite: what is accepted is followed to the letter, the rest is refused."""

from collections.abc import Iterator

import numpy as np
import pytest
from tests.fakes_text import EOT, byte_tokenizer
from tests.shared_data import shared_data
from tools.json_schema_suite import Group, Instance, groups

from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.sampling.grammar import CompiledGrammar, GrammarCompiler
from kokuban.text.grammar import json_schema_grammar

COMPILER = GrammarCompiler(byte_tokenizer(), [EOT], 262)
KEYWORDS = (
    "not", "if", "contains", "propertyNames", "uniqueItems", "dependentRequired", "$ref", "false",
    "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "format", "oneOf", "anyOf", "minimum or maximum", "multipleOf", "pattern", "minProperties",
    "patternProperties", "$dynamicAnchor", "const", "enum",
)  # fmt: skip


@pytest.fixture(scope="module")
def suite() -> list[Group]:
    return list(groups(shared_data("jsonschema")))


def passes(grammar: CompiledGrammar, text: str) -> bool:
    """Whether the masks let every byte of the text through, and the end behind it."""
    request = Request(id=RequestId("r"), prompt_token_ids=(1,), params=SamplingParams())
    constraint = grammar.begin(request)
    mask = np.zeros((1, constraint.width), np.uint32)
    for token in [*text.encode(), EOT]:
        constraint.fill(mask)
        if not mask[0, token // 32] >> np.uint32(token % 32) & np.uint32(1):
            return False
        constraint.append(token)
    return True


def wrong(grammar: CompiledGrammar, instances: tuple[Instance, ...]) -> Iterator[str]:
    for instance in instances:
        if instance.only_noted or (instance.valid and instance.too_long):
            continue
        found = [passes(grammar, text) for text in instance.texts]
        if any(found) != instance.valid:
            yield instance.name


def test_accepted_schemas_are_followed_and_the_rest_is_refused_by_keyword(
    suite: list[Group],
) -> None:
    accepted, mistakes, unnamed = 0, [], []
    for group in suite:
        try:
            grammar = COMPILER.compile(json_schema_grammar(group.schema))
        except RequestError as error:
            if not any(keyword in str(error) for keyword in KEYWORDS):
                unnamed.append(f"{group.name}: {error}")
            continue
        accepted += 1
        mistakes += [f"{group.name}: {name}" for name in wrong(grammar, group.instances)]

    assert mistakes == []
    assert unnamed == []
    assert accepted == 260
