"""The table of parameters agrees with everything that is made from it or beside it."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kokuban.core.errors import RequestError
from kokuban.core.parameters import BIAS_RANGE, RANGES, Range
from kokuban.core.sampling_params import SamplingParams
from kokuban.server.openai_models import ChatRequest, CompletionRequest, parse
from kokuban.server.parameter import Api, Fate, Parameter
from kokuban.server.parameters import TABLE, known_names, unknown_fields

MODELS: dict[Api, type[BaseModel]] = {Api.CHAT: ChatRequest, Api.COMPLETIONS: CompletionRequest}
ROOT = Path(__file__).resolve().parents[3]


def served(api: Api) -> dict[str, Parameter]:
    return {p.name: p for p in TABLE if p.fate is Fate.SERVED and api in p.apis}


def types_of(schema: dict[str, Any]) -> set[str]:
    """The JSON types that a property's schema takes, null aside."""
    if "$ref" in schema:
        return {"object"}
    types = {schema["type"]} if "type" in schema else set()
    if not types and ("enum" in schema or "const" in schema):
        types.add("string")
    for each in schema.get("anyOf", []):
        types |= types_of(each)
    return types - {"null"}


@pytest.mark.parametrize("api", MODELS)
def test_a_body_has_the_fields_of_the_table_and_no_other(api: Api) -> None:
    assert set(MODELS[api].model_fields) == set(served(api))


@pytest.mark.parametrize("api", MODELS)
def test_types_limits_and_meanings_of_the_document_are_those_of_the_table(api: Api) -> None:
    properties = MODELS[api].model_json_schema()["properties"]

    for name, parameter in served(api).items():
        schema = properties[name]
        assert types_of(schema) == parameter.json_types, name
        assert schema["description"] == parameter.meaning
        if parameter.limits is not None:
            assert maximum_of(schema) == parameter.limits.high, name


def maximum_of(schema: dict[str, Any]) -> float:
    found = [each["maximum"] for each in (schema, *schema.get("anyOf", [])) if "maximum" in each]
    assert len(found) == 1
    largest: float = found[0]
    return largest


def test_no_name_is_declared_twice_for_one_route() -> None:
    for api in MODELS:
        names = known_names(api)
        assert len(names) == len(set(names))


def test_every_number_of_the_sampling_parameters_has_a_range() -> None:
    numbers = {
        field.name
        for field in dataclasses.fields(SamplingParams)
        if field.type in ("int", "float", "int | None", int, float, int | None)
    }

    assert numbers == set(RANGES)


@pytest.mark.parametrize("name", RANGES)
def test_sampling_takes_both_ends_of_a_range_and_nothing_outside(name: str) -> None:
    limits = RANGES[name]
    least = 1 if limits.whole else 1e-9
    beside: dict[str, Any] = {"prompt_logprobs": 0} if name == "max_tokens" else {}
    if name == "min_tokens":
        beside = {"max_tokens": None}

    SamplingParams(**{name: limits.low + least * limits.is_open, **beside})
    SamplingParams(**{name: limits.high, **beside})
    for value in (limits.low - least * (not limits.is_open), limits.high + max(least, 1e-6)):
        with pytest.raises(RequestError, match=name):
            SamplingParams(**{name: value, **beside})


def test_a_range_takes_no_number_that_is_none() -> None:
    limits = Range(0.0, 1.0)

    assert limits.problem("x", float("nan")) == "x=nan is not between 0 and 1"
    assert limits.problem("x", True) == "x=True is not a number"
    assert limits.problem("x", "1") == "x='1' is not a number"
    assert limits.problem("x", 10**400) == f"x={10**400} is not between 0 and 1"
    assert limits.problem("x", 1) is None
    assert BIAS_RANGE.problem("bias", -100) is None


def chat(fields: str) -> ChatRequest:
    body = '{"model":"m","messages":[{"role":"user","content":"x"}],' + fields + "}"
    return parse(ChatRequest, body.encode())


@pytest.mark.parametrize("parameter", [p for p in TABLE if p.fate is Fate.REFUSED])
def test_what_is_refused_is_refused_with_the_way_out_unless_it_asks_nothing(
    parameter: Parameter,
) -> None:
    is_chat = Api.CHAT in parameter.apis
    body: dict[str, Any] = {"model": "m", "prompt": "p"}
    model: type[Any] = CompletionRequest
    if is_chat:
        body, model = {"model": "m", "messages": [{"role": "user", "content": "x"}]}, ChatRequest

    for value in (None, *parameter.neutral):
        parse(model, json.dumps({**body, parameter.name: value}).encode())
    with pytest.raises(RequestError) as raised:
        parse(model, json.dumps({**body, parameter.name: {"some": "thing"}}).encode())

    assert str(raised.value) == f"{parameter.name}: {parameter.meaning}"
    assert (raised.value.param, raised.value.code) == (parameter.name, "unsupported_field")


def test_zero_is_not_taken_for_false() -> None:
    with pytest.raises(RequestError, match="prompt_logprobs"):
        chat('"prompt_logprobs":0')


@pytest.mark.parametrize("field", ['"store":1', '"metadata":[]', '"service_tier":true'])
def test_what_has_no_effect_has_a_type_all_the_same(field: str) -> None:
    with pytest.raises(RequestError, match="must be of type"):
        chat(field)


def test_unknown_fields_are_found_inside_objects_but_not_in_messages() -> None:
    body = chat(
        '"store":true,"temprature":1,"stream":true,"stream_options":{"usage":1},'
        '"tools":[{"type":"function","function":{"name":"f","x":1},"y":2}],'
        '"prompt_cache_options":{"mode":"implicit","size":3}'
    )

    found = list(unknown_fields(body, Api.CHAT))

    assert sorted(found) == ["prompt_cache_options.size", "stream_options.usage", "temprature"]


def test_the_page_of_all_fields_is_up_to_date() -> None:
    command = [sys.executable, "tools/make_api_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")
