"""Values for every field of the table, as JSON text: such as it takes, and such as it must not.

JSON text and not Python values, because NaN, 1e400 and half of a surrogate pair are part of it.
"""

import json
from collections.abc import Mapping, Sequence

from kokuban.core.parameters import Range
from kokuban.server.parameter import Parameter

VOCAB_SIZE = 512
"""Of the models that tests serve."""

JUNK = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 40, "true", "false", "[]", "{}",
    '""', '"x"', "[null]", '{"a":1}', "1.5", "-0.0", "0", "-1", '"\\ud83d"', '"\\u0000"',
    "[[[[[[[[]]]]]]]]", '"' + "x" * 3000 + '"', "[1,2,3]", '["a","b"]', "[1.0]", "[true]",
)  # fmt: skip
"""Something of every kind, most of it wrong nearly everywhere."""

_GOOD: Mapping[str, Sequence[str]] = {
    "model": ('"m"',),
    "stream_options": ("null",),
    "stop": ('"x"', "[]", '["ab","c"]', '"\\u0000"'),
    "stop_token_ids": ("[]", "[0,511]"),
    "logit_bias": ("{}", '{"97":100,"511":-100}', '{"0":0.5}'),
    "prompt_cache_key": ('"s"', '"s2"', '"é😀"'),
    "prompt_cache_options": ("{}", '{"mode":"implicit"}', '{"ttl":"30m"}'),
    "cache_control": ('{"type":"ephemeral"}', '{"type":"ephemeral","ttl":"1h"}'),
    "response_format": ('{"type":"text"}', '{"type":"json_object"}'),
    "structured_outputs": ('{"regex":"a+"}', '{"choice":["a"],"regex":null}'),
    "guided_json": ('{"type":"object"}', "true", '"{}"'),
    "json_schema": ('{"type":"object"}', "true", '"{}"'),
    "guided_choice": ('["a","b"]',),
    "choice": ('["a","b"]',),
    "guided_grammar": ('"root ::= \\"a\\""',),
    "grammar": ('"start: \\"a\\""',),
    "messages": (
        '[{"role":"user","content":"p"}]',
        '[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}]',
        '[{"role":"user","content":"A\\u0000B"}]',
    ),
    "tools": ("[]", '[{"type":"function","function":{"name":"f","parameters":{}}}]'),
    "tool_choice": ('"auto"', '"none"'),
    "modalities": ('["text"]',),
    "chat_template_kwargs": ("{}", '{"enable_thinking":false}'),
    "prompt": ('"p"', '["a","b"]', "[112]", "[[97],[98,99]]", '"A\\u0000B"'),
    "top_logprobs": ("null",),
    "max_tokens": ("1", str(2**62)),
    "min_tokens": ("0", "1"),
    "continue_final_message": ("null", "false"),
    "best_of": ("null",),
    "suffix": ("null",),
}
"""Where a type does not say what is taken."""

_BAD: Mapping[str, Sequence[str]] = {
    "stop": ('""', '[""]', json.dumps(["x"] * 17), '"' + "x" * 1025 + '"'),
    "stop_token_ids": ("[512]", "[-1]", "[1.5]", "[true]", "[1e400]", "[" + "1" * 40 + "]"),
    "logit_bias": (
        '{"512":1}', '{"-1":1}', '{"a":1}', '{"97":"1"}', '{"97":100.5}', '{"97":NaN}',
        '{"97":1e400}', '{"97":true}', json.dumps({str(i): 1 for i in range(1025)}),
    ),
    "prompt_cache_key": ('""', '"\\n"', '"' + "x" * 257 + '"'),
    "response_format": ("{}", '{"type":"xml"}', '{"type":"json_schema"}'),
    "structured_outputs": ("{}", '{"regex":"a","choice":["a"]}', '{"x":1}', '{"json":null}'),
    "guided_json": ("false", '""', '"{"', '"5"', '{"not":{}}'),
    "json_schema": ("false", '""', '"{"', '"5"', '{"format":"x"}'),
    "guided_regex": ('""',),
    "regex": ('""',),
    "guided_choice": ("[]", "[1]"),
    "choice": ("[]", "[1]"),
    "guided_grammar": ('""', '"x"'),
    "grammar": ('""', '"x"'),
    "cache_salt": ('""', '"' + "x" * 1025 + '"'),
    "prompt_cache_retention": ('"1h"',),
    "reasoning_effort": ('"huge"',),
    "messages": ("[]", '[{"role":"robot","content":"x"}]', '[{"role":"user"}]'),
    "prompt": (
        '""', "[]", "[[]]", '["a",""]', "[512]", "[-1]", "[1.5]", "[true]", '["a",1]',
        "[1099511627776]",
    ),
}  # fmt: skip
"""Of the right type and wrong all the same."""

_BY_KIND: Mapping[str, Sequence[str]] = {
    "boolean": ("true", "false"),
    "string": ('"x"', '"\\ud83d\\ude00"'),
    "object": ("{}",),
    "array": ("[]",),
    "integer": ("0", "1"),
    "number": ("0", "1.5"),
}


def good(parameter: Parameter) -> list[str]:
    """Values that are taken, beside a body that says nothing against them. null always is one."""
    if parameter.limits is not None and parameter.name not in _GOOD:
        return ["null", *_inside(parameter.limits)]
    if parameter.name in _GOOD:
        found = list(_GOOD[parameter.name])
    elif parameter.choices:
        found = [json.dumps(choice) for choice in parameter.choices]
    else:
        found = [each for kind in sorted(parameter.json_types) for each in _BY_KIND[kind]]
    return found if parameter.default == "required" else ["null", *found]


def bad(parameter: Parameter) -> list[str]:
    """Values that are refused by the field's name."""
    found = list(_BAD.get(parameter.name, ()))
    if parameter.limits is not None:
        found += _outside(parameter.limits)
    wrong = {
        "boolean": "true", "integer": "7", "number": "7.5", "string": '"7"', "array": "[7]",
        "object": '{"7":7}',
    }  # fmt: skip
    types = parameter.json_types | ({"integer"} if "number" in parameter.json_types else set())
    return found + [text for kind, text in wrong.items() if kind not in types]


def _inside(limits: Range) -> list[str]:
    edges = [limits.low, limits.high]
    if limits.is_open:
        edges[0] = 1e-9 if not limits.whole else limits.low + 1
    return [json.dumps(edge) for edge in edges]


def _outside(limits: Range) -> list[str]:
    step = 1 if limits.whole else 1e-3
    low = limits.low if limits.is_open else limits.low - step
    numbers = [json.dumps(low), json.dumps(limits.high + step)]
    beyond = ["NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400]
    return numbers + beyond + (["1.0", "1.5"] if limits.whole else [])
