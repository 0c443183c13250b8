"""Sampling parameters are checked where they are made, one-sided comparisons fooled by no NaN."""

import math
from typing import Any

import pytest

from kokuban.core.errors import RequestError
from kokuban.core.sampling_params import SamplingParams


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ],
)
def test_a_value_that_is_no_number_is_refused_by_name(name: str, value: float) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(RequestError, match=name) as raised:
        SamplingParams(**options)

    assert raised.value.param == name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 2.01}, "temperature=2.01 is not between 0 and 2"),
        ({"top_p": 0.0}, "top_p=0.0 is not above 0 and at most 1"),
        ({"top_k": -2}, "top_k=-2 is not between -1"),
        ({"n": 0}, "n=0 is not between 1 and 128"),
        ({"seed": 2**63}, "seed=9223372036854775808 is not between"),
        ({"logprobs": 21}, "logprobs=21 is not between 0 and 20"),
        ({"max_tokens": 0}, "max_tokens=0 asks for no token"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens=4 is above max_tokens=3"),
        ({"top_k": 2.5}, "top_k=2.5 is not a whole number"),
        ({"seed": True}, "seed=True is not a whole number"),
        ({"max_tokens": "5"}, "max_tokens='5' is not a whole number"),
        ({"stop_token_ids": (5.0,)}, "stop_token_ids names 5.0, which is no token id"),
        ({"logit_bias": {3.0: 1.0}}, "logit_bias names 3.0, which is no token id"),
        ({"stop": ("",)}, "stop holds an empty string"),
        ({"stop": ("x",) * 17}, "stop has 17 strings; the limit is 16"),
        ({"logit_bias": {5: 101.0}}, "logit_bias of token 5 is 101.0, not within -100 to 100"),
        ({"logit_bias": {5: math.nan}}, "logit_bias of token 5 is nan"),
    ],
)
def test_a_limit_is_named_with_the_value(options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as raised:
        SamplingParams(**options)

    assert text in str(raised.value)
    assert raised.value.param == next(reversed(options))


def test_the_extremes_are_allowed() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=1, top_k=-1, seed=-(2**63), n=128)
    SamplingParams(temperature=2, seed=2**63 - 1, max_tokens=10**12, logit_bias={0: -100.0})
    SamplingParams(max_tokens=0, prompt_logprobs=0)
