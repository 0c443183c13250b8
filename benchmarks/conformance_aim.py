"""Turns requests that a document allows into ones that this server can answer.

What a schema cannot say is said here: which names exist, that a tool which is to be called must be
offered, that a text is a grammar, that one number is below another. Numbers of choices and lengths
become small, or the answers would cost more than all else.
"""

from collections.abc import Iterator
from typing import Any

from kokuban.server.output_format import FORM_FIELDS

MODEL = "m"
VOCABULARY = 512
FEW = 4
MAX_MARKS = 4
CUE = "[answer]"
GRAMMAR = 'start: "a" | "b"'
_COUNTS = ("n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens")
_GRAMMARS = ("grammar", "guided_grammar")
_SCHEMA_TEXTS = ("guided_json", "json_schema")


def aim(body: dict[str, Any], *, stream: bool) -> None:
    """Make a body one that can be answered.

    Args:
        stream: it shall ask for a stream, where that is not ruled out by what else it asks.
    """
    body["model"] = MODEL
    if stream:
        body["stream"] = True
    for name in _COUNTS:
        if isinstance(value := body.get(name), int) and not isinstance(value, bool) and value > 0:
            body[name] = value % FEW + 1
    limit = "max_tokens" if body.keys() & {"messages", "prompt"} else "max_output_tokens"
    body.setdefault(limit, FEW)
    _one_form(body)
    _numbers(body)
    _tools(body)
    body.pop("suffix", None)  # The model has no tokens for a gap.
    _words(body)
    _marks(body, MAX_MARKS)
    if isinstance(body.get("prompt_cache_key"), str):
        body["prompt_cache_key"] = "s"


def _numbers(body: dict[str, Any]) -> None:
    """What stands in a relation to another number, or to the vocabulary."""
    body.pop("min_tokens", None)
    best_of = body.get("best_of")
    if best_of is not None and (body.get("stream") or best_of < (body.get("n") or 1)):
        del body["best_of"]
    if body.get("max_tokens") == 0 and not body.get("echo"):
        del body["max_tokens"]
    biases = body.get("logit_bias")
    if isinstance(biases, dict):
        body["logit_bias"] = {
            str(int(key) % VOCABULARY if key.isdecimal() else place): bias
            for place, (key, bias) in enumerate(biases.items())
        }
    if isinstance(limit := body.get("truncate_prompt_tokens"), int) and limit > 0:
        body["truncate_prompt_tokens"] = limit % FEW + 1
    if isinstance(size := body.get("dimensions"), int):
        body["dimensions"] = size % FEW + 1


def _words(body: dict[str, Any]) -> None:
    """Something that is said, in turns that can be read one after the other."""
    for name in ("prompt", "input"):
        if name in body:
            body[name] = _prompt(body[name])
    if isinstance(body.get("prompt"), str):
        body["prompt"] += CUE  # Or the scripted model has nothing to say.
    for name in ("messages", "input"):
        turns = body.get(name)
        if isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
            body[name] = [_turn(turn) for turn in turns]
            if name == "messages" and turns[-1].get("role") == "assistant":
                body[name].append({"role": "user", "content": "p"})


def _prompt(value: Any) -> Any:
    """A prompt of one kind, none of it empty, of tokens that there are."""
    if value in ("", []) or value is None:
        return "p"
    if not isinstance(value, list) or any(isinstance(each, dict) for each in value):
        return value
    return [_row(each) for each in value]


def _row(value: Any) -> Any:
    """A text, a token, or the tokens of one prompt."""
    if isinstance(value, int):
        return value % VOCABULARY
    if isinstance(value, list):
        return [_row(token) for token in value] or [0]
    return value or "p"


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    if turn.get("type") == "item_reference" or not turn.keys() & {"type", "role"}:
        return {"role": "user", "content": "p"}
    calls = [call.get("function", {}) for call in turn.get("tool_calls") or ()]
    for place in (turn, *calls):
        if isinstance(place.get("arguments"), str):
            place["arguments"] = "{}"
    if turn.get("content") in ("", []):
        turn["content"] = "p"
    return turn


def _marks(value: Any, left: int) -> int:
    """Keep the first marks of the cache; returns how many more there may be."""
    if isinstance(value, dict):
        for name in ("cache_control", "prompt_cache_breakpoint"):
            if value.get(name) is not None:
                left -= 1
                if left < 0:
                    del value[name]
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            left = _marks(inner, left)
    return left


def _one_form(body: dict[str, Any]) -> None:
    """The first form of an answer that is asked for."""
    asked = [name for name in FORM_FIELDS if body.get(name) is not None]
    for name in asked[1:]:
        del body[name]
    for name in asked[:1]:
        if name in _GRAMMARS:
            body[name] = GRAMMAR
        if name in _SCHEMA_TEXTS and isinstance(body[name], str):
            body[name] = "{}"
    outer = body.get("structured_outputs")
    if isinstance(outer, dict) and outer.get("grammar") is not None:
        outer["grammar"] = GRAMMAR


def _tools(body: dict[str, Any]) -> None:
    """A choice among the tools that are there."""
    choice, names = body.get("tool_choice"), [*_names(body.get("tools") or ())]
    if choice is None or isinstance(choice, str):
        return
    if not names:
        del body["tool_choice"]
        return
    for place in _choices(choice):
        if "name" in place:
            place["name"] = names[0]


def _names(tools: Any) -> Iterator[str]:
    """Of the tools that are described, not only named."""
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        inner = tool.get("function")
        function = inner if isinstance(inner, dict) else tool
        if isinstance(name := function.get("name"), str) and name:
            yield name


def _choices(choice: Any) -> Iterator[dict[str, Any]]:
    """Every object in a choice of tools."""
    if isinstance(choice, dict):
        yield choice
        for inner in choice.values():
            yield from _choices(inner)
    elif isinstance(choice, list):
        for inner in choice:
            yield from _choices(inner)


def plain(value: Any) -> Any:
    """A copy in which 2.0 is 2: to JSON Schema both are integers, to the server only the second."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value
