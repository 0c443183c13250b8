"""Finds which of the offered tools an answer calls, in the forms of the model families we run.

    <tool_call>{"name": "f", "arguments": {}}</tool_call>     Hermes, Qwen
    <tool_call>[{"name": "f", "arguments": {}}]</tool_call>   SmolLM2
    {"name": "f", "parameters": {}}                           Llama 3
    <function=f>                                              Llama 3.1, Qwen3-Coder
    ```tool_code
    f(city="Paris")                                           Gemma
    ```

Names only: this says what runs between two requests of a conversation, and is no parser of calls.
A wrong guess costs a little cache, so that the texts are searched and not parsed. Every search goes
over the text once, whatever the text is.
"""

import json
import re
from collections.abc import Collection, Iterator

_THOUGHTS_END = "</think>"
_CODE, _FENCE = "```tool_code", "```"

_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:')
_NAME = re.compile(r'"name"\s*+:\s*+("(?:[^"\\\n]|\\.)*+")')
_TAG = re.compile(r"<function=([^<>\n]{1,256})>")

# The look behind lets a search begin at the first letter of a word only.
_CALL = re.compile(r"(?<![\w.\-])([\w.\-]++)\s*+\(")


def called_names(text: str, offered: Collection[str]) -> tuple[str, ...]:
    """Names that the text calls, each once, sorted.

    Args:
        text: a whole answer; what it thought aloud before is left out.
        offered: the names of the tools that it may call.
    """
    answer = text.rpartition(_THOUGHTS_END)[2]
    return tuple(sorted(set(_candidates(answer)).intersection(offered)))


def _candidates(text: str) -> Iterator[str]:
    if _ARGUMENTS.search(text):
        for found in _NAME.finditer(text):
            yield _unquoted(found[1])
    for found in _TAG.finditer(text):
        yield found[1].strip()
    for code in _code_blocks(text):
        for found in _CALL.finditer(code):
            yield found[1]


def _code_blocks(text: str) -> Iterator[str]:
    """What stands between the fences of each block of calls; the last one may be left open."""
    for part in text.split(_CODE)[1:]:
        yield part.partition(_FENCE)[0]


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
