"""Outputs under a grammar, through engine and kernels: always valid, whatever else goes on."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tools.bugbank_models import write_attn, write_chain

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.request import FinishReason
from kokuban.engine.llm import ChoiceOutput
from kokuban.text.grammar import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)

RUNTIME = RuntimeConfig(kv_memory_bytes=2**24, threads=1)
PERSON: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["é", 'a"b', "c\\d", 1, None]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["name", "age", "born", "tags", "next"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"const": "😀"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        }
    },
}
JSON = SamplingParams(grammar=json_schema_grammar(PERSON), max_tokens=400)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_attn(tmp_path_factory.mktemp("attn"), seed=3)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, runtime=RUNTIME) as llm:
        yield llm


def choices(llm: LLM, params: SamplingParams, prompt: str = "ab") -> tuple[ChoiceOutput, ...]:
    return llm.generate(prompt, params)[0].choices


def one(llm: LLM, params: SamplingParams, prompt: str = "ab") -> ChoiceOutput:
    [choice] = choices(llm, params, prompt)
    return choice


def assert_valid(choice: ChoiceOutput, schema: Any = PERSON) -> None:
    assert choice.finish is FinishReason.STOP
    jsonschema.validate(json.loads(choice.text), schema)


def test_every_choice_of_a_random_model_is_valid(llm: LLM) -> None:
    """Each choice has a matcher of its own."""
    found = choices(llm, replace(JSON, n=12, seed=5, temperature=1.5))

    for choice in found:
        assert_valid(choice)
    assert len({choice.text for choice in found}) == 12


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
        {"enum": ['a"b', "c\\d", "é", "世", "😀", "\u2028", "x\ny", "", "</tool_call>", 1.5, True]},
        {"type": "string", "pattern": r"^\d{3}-\w+$", "maxLength": 12},
        {"type": "string", "pattern": r"^(https:\/\/)?x\.y\/\S{0,5}$"},
        {"type": "string", "minLength": 10, "maxLength": 10},
        {"type": ["integer", "null"], "multipleOf": 7},
        {"type": "object", "patternProperties": {"^x.{0,3}$": {"type": "null"}}, "maxProperties": 2,
         "additionalProperties": False},
    ],
)  # fmt: skip
def test_random_outputs_are_valid_under_each_kind_of_schema(llm: LLM, schema: Any) -> None:
    """B09, B51, B52: patterns with shorthand, exact lengths in code points, escapes in enums."""
    params = SamplingParams(grammar=json_schema_grammar(schema), seed=1, n=8, max_tokens=300)

    for choice in choices(llm, params):
        assert_valid(choice, schema)


@pytest.mark.parametrize("value", ['a"b', "c\\d", "é", "世", "😀", "\u2028", "x\ny", "", 5, None])
def test_a_constant_comes_out_as_it_is(llm: LLM, value: Any) -> None:
    """B52: escaping through several layers."""
    for schema in ({"const": value}, {"enum": [value]}):
        choice = one(llm, SamplingParams(grammar=json_schema_grammar(schema), max_tokens=50))

        assert json.loads(choice.text) == value


def test_choices_and_patterns_are_followed(llm: LLM) -> None:
    words = one(llm, SamplingParams(grammar=choice_grammar(["yes", "no"]), max_tokens=10))
    digits = one(llm, SamplingParams(grammar=regex_grammar("[0-9]{3}-[a-c]"), max_tokens=10))

    assert words.text in ("yes", "no")
    assert (digits.text[3], digits.finish) == ("-", FinishReason.STOP)


def test_logprobs_are_the_models_own(llm: LLM) -> None:
    free = one(llm, SamplingParams(temperature=0, max_tokens=1, logprobs=3, ignore_eos=True))
    held = one(
        llm,
        SamplingParams(temperature=0, max_tokens=1, logprobs=3, grammar=choice_grammar(["yes"])),
    )

    assert held.tokens[0].top == free.tokens[0].top
    assert held.tokens[0].token_id == ord("y")
    assert held.tokens[0].logprob < free.tokens[0].logprob


def test_an_output_that_is_cut_has_finished_by_length(llm: LLM) -> None:
    choice = one(llm, replace(JSON, max_tokens=4))

    assert (choice.finish, len(choice.tokens)) == (FinishReason.LENGTH, 4)
    assert choice.text.startswith("{")


@pytest.mark.parametrize("params", [{"min_tokens": 50}, {"ignore_eos": True}])
def test_a_complete_text_ends_whatever_is_asked_of_its_length(
    llm: LLM, params: dict[str, Any]
) -> None:
    grammar = choice_grammar(["yes"])
    choice = one(llm, SamplingParams(grammar=grammar, max_tokens=60, **params))

    assert (choice.text, choice.finish, len(choice.tokens)) == ("yes", FinishReason.STOP, 4)


def test_a_bias_does_not_lift_a_mask(llm: LLM) -> None:
    params = SamplingParams(grammar=choice_grammar(["a", "b"]), logit_bias={ord("c"): 100.0})

    assert one(llm, params).text in ("a", "b")


def test_the_same_tokens_come_whatever_the_company(llm: LLM) -> None:
    alone = one(llm, replace(JSON, seed=8, logprobs=2))
    params = [replace(JSON, seed=seed, logprobs=2) for seed in (1, 8, 2)]
    params += [SamplingParams(seed=3, max_tokens=200, ignore_eos=True)] * 3

    together = llm.generate(["ab", "ab", "x", "yy", "ab", "z"], params)

    assert together[1].choices[0].tokens == alone.tokens


def test_preemption_changes_nothing(path: Path, llm: LLM) -> None:
    """B56: the grammar's state is made again from the output; the end follows the last brace."""
    params = [replace(JSON, temperature=0.0), replace(JSON, seed=9)]
    plain = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
    prompts = ["ab" * 20, "cd" * 20, "ef" * 20, "gh" * 20]
    wanted = llm.generate(prompts, [*params, plain, plain])

    small = RuntimeConfig(kv_memory_bytes=30 * 16 * 512, threads=1)
    scheduler = SchedulerConfig(prefix_cache=False, max_context_tokens=448)
    with LLM(path, runtime=small, scheduler=scheduler) as tight:
        found = tight.generate(prompts, [*params, plain, plain])
        preemptions = tight.engine.client.stats().preemptions

    assert preemptions > 0
    assert [each.choices[0].tokens for each in found] == [each.choices[0].tokens for each in wanted]
    assert_valid(found[0].choices[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing(path: Path, llm: LLM, temperature: float) -> None:
    """Drafts that the grammar forbids are never kept."""
    schema = {"type": "array", "items": {"enum": ["abcabc", "abcabd"]}, "maxItems": 20}
    params = SamplingParams(
        grammar=json_schema_grammar(schema), temperature=temperature, seed=4, max_tokens=300
    )
    prompt = '["abcabc","abcabd","abcabc","abcabe"] ["abcabc",'
    wanted = [one(llm, params, prompt), one(llm, replace(JSON, temperature=temperature, seed=1))]

    runtime = replace(RUNTIME, speculate="ngram")
    with LLM(path, runtime=runtime) as guessing:
        found = [
            one(guessing, params, prompt),
            one(guessing, replace(JSON, temperature=temperature, seed=1)),
        ]
        drafts = guessing.engine.client.stats().drafted_tokens

    assert drafts > 0
    assert [each.tokens for each in found] == [each.tokens for each in wanted]


def test_what_cannot_be_built_is_refused_and_others_go_on(llm: LLM) -> None:
    """B10: no text at all."""
    with pytest.raises(RequestError, match="pattern") as caught:
        one(llm, SamplingParams(grammar=json_schema_grammar({"pattern": "(["})))

    assert caught.value.param == "grammar"
    assert_valid(one(llm, replace(JSON, seed=1)))


def stubborn(tmp_path: Path, *tokens: int) -> Path:
    """A model that says these tokens in turn, whatever came."""
    script = {token: dict.fromkeys(tokens, 1.0) for token in range(512)}
    return write_chain(tmp_path, script)


def test_white_space_ends(tmp_path: Path) -> None:
    """B47: every token leads to white space, and the client wants it too."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bias = dict.fromkeys((9, 10, 13, 32), 100.0)
    params = SamplingParams(
        grammar=json_schema_grammar({**schema, "additionalProperties": False}),
        temperature=0,
        logit_bias=bias,
        max_tokens=200,
    )
    with LLM(stubborn(tmp_path, 10), runtime=RUNTIME) as llm:
        choice = one(llm, params)

    assert_valid(choice, schema)
    runs = "".join(mark if mark.isspace() else "|" for mark in choice.text).split("|")
    assert max(map(len, runs)) == 20


@pytest.mark.parametrize("schema", [{}, True, {"type": "number"}, {"type": "integer"}])
def test_numbers_end(tmp_path: Path, schema: Any) -> None:
    """B53: "any value" must not be one number of max_tokens digits."""
    params = SamplingParams(
        grammar=json_schema_grammar(schema),
        temperature=0,
        logit_bias={ord("1"): 100.0},
        max_tokens=200,
    )
    with LLM(stubborn(tmp_path, ord("1")), runtime=RUNTIME) as llm:
        choice = one(llm, params)

    assert choice.finish is FinishReason.STOP
    assert isinstance(json.loads(choice.text), int | float)


def test_a_json_object_is_an_object(llm: LLM) -> None:
    """B53: {"type": "json_object"} gives an object."""
    params = SamplingParams(
        grammar=json_object_grammar(), seed=2, max_tokens=400, logit_bias={ord("}"): 8.0}
    )

    assert isinstance(json.loads(one(llm, params).text), dict)
