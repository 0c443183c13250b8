"""Real models held to a form: every output that ends is valid."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig
from kokuban.core.request import FinishReason
from kokuban.text.grammar import json_object_grammar, json_schema_grammar, regex_grammar
from kokuban.weights.pull import models_dir

pytestmark = pytest.mark.models

SCHEMAS: dict[str, Any] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "born": {"type": "string", "format": "date"},
            "email": {"type": "string", "format": "email", "maxLength": 40},
            "height": {"type": "number", "minimum": 0.3, "maximum": 2.5},
        },
        "required": ["name", "born", "email", "height"],
        "additionalProperties": False,
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer", "minimum": 0, "maximum": 99},
                    "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
                },
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
    "shapes": {
        "type": "array",
        "items": {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "size": {"type": "integer"}},
                    "required": ["kind", "size"],
                    "additionalProperties": False,
                }
                for kind in ("circle", "square", "三角")
            ]
        },
        "minItems": 1,
        "maxItems": 3,
    },
}
PROMPT = "Write some JSON about a person, a tree or shapes:\n"


@pytest.fixture(scope="module", params=["smollm2", "qwen", "gemma"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    path = models_dir() / f"{request.param}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is absent; run tools/fetch_test_models.py")
    with LLM(path, runtime=RuntimeConfig(kv_memory_bytes=2**27)) as llm:
        yield llm


def test_all_that_ends_is_valid(llm: LLM) -> None:
    """100 % of finished outputs; a tree may grow beyond the limit of tokens."""
    names = list(SCHEMAS)
    params = [
        SamplingParams(
            grammar=json_schema_grammar(SCHEMAS[name]), n=4, seed=seed, max_tokens=300,
            temperature=temperature,
        )
        for name in names
        for seed, temperature in ((1, 0.7), (2, 1.2))
    ]  # fmt: skip

    outputs = llm.generate([PROMPT] * len(params), params)

    ended = 0
    for index, output in enumerate(outputs):
        schema = SCHEMAS[names[index // 2]]
        for choice in output.choices:
            if choice.finish is FinishReason.STOP:
                jsonschema.validate(json.loads(choice.text), schema)
                ended += 1
    assert ended >= 12


def test_a_text_begins_as_the_grammar_says(llm: LLM) -> None:
    """Also where the vocabulary puts a space in front of words."""
    messages = [{"role": "user", "content": "Say a word."}]
    for pattern in ("[a-z]{3,8}", " [A-Z][a-z]{2,6}", "the exact answer is: [0-9]{1,3}"):
        output = llm.chat(
            messages, SamplingParams(grammar=regex_grammar(pattern), temperature=0, max_tokens=30)
        )

        assert re.fullmatch(pattern, output.choices[0].text)


def test_an_object_that_is_cut_has_finished_by_length(llm: LLM) -> None:
    params = SamplingParams(grammar=json_object_grammar(), temperature=0, max_tokens=3)

    [choice] = llm.generate(PROMPT, params)[0].choices

    assert (choice.finish, choice.text[:1]) == (FinishReason.LENGTH, "{")
