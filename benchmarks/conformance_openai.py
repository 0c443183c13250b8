"""OpenAI's document: what it says wrongly of itself, and what of it this server leaves out.

`DEVIATIONS` are places where OpenAI's own servers do not answer as the document says; each is
mended in the copy that answers are held against. `leave_out` takes from a request what is refused
here by name (`docs/api-reference.md`), so that the rest is answered.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from kokuban.server.parameter import Fate
from kokuban.server.parameters import TABLE
from kokuban.server.responses.items import MODELS
from kokuban.server.responses.request import REFUSED

Json = dict[str, Any]

_EVENT = "#/components/schemas/ResponseStreamEvent"


class Deviation(NamedTuple):
    """A place where the document is wrong."""

    place: str
    reason: str
    mend: Callable[[Json], None]
    """Changes the whole document."""


def _vectors(raw: Json) -> None:
    vector = raw["components"]["schemas"]["Embedding"]["properties"]
    vector["embedding"] = {"anyOf": [vector["embedding"], {"type": "string"}]}


def _first_logprob(raw: Json) -> None:
    choice = raw["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]
    for branch in choice["items"]["properties"]["logprobs"]["anyOf"]:
        for name in ("token_logprobs", "top_logprobs"):
            if name in branch.get("properties", {}):
                items = branch["properties"][name]["items"]
                branch["properties"][name]["items"] = {"anyOf": [items, {"type": "null"}]}


def _resumed_stream(raw: Json) -> None:
    answer = raw["paths"]["/responses/{response_id}"]["get"]["responses"]["200"]
    answer["content"]["text/event-stream"] = {"schema": {"$ref": _EVENT}}


def _streamed_completion(raw: Json) -> None:
    event = deepcopy(raw["components"]["schemas"]["CreateCompletionResponse"])
    choice = event["properties"]["choices"]["items"]["properties"]
    for place, name in ((event["properties"], "usage"), (choice, "finish_reason")):
        place[name] = {"anyOf": [place[name], {"type": "null"}]}
    raw["components"]["schemas"]["StreamedCompletion"] = event
    answer = raw["paths"]["/completions"]["post"]["responses"]["200"]
    schema = {"$ref": "#/components/schemas/StreamedCompletion"}
    answer["content"]["text/event-stream"] = {"schema": schema}


DEVIATIONS = (
    Deviation(
        "Embedding.embedding",
        "is a list of numbers; with encoding_format=base64, which the document offers, a text",
        _vectors,
    ),
    Deviation(
        "CreateCompletionResponse.choices[].logprobs",
        "has numbers and objects only; with echo the first token has none, which is null",
        _first_logprob,
    ),
    Deviation(
        "getResponse",
        "answers JSON only; with stream=true, which the document offers, it is a stream",
        _resumed_stream,
    ),
    Deviation(
        "createCompletion",
        "answers JSON only; with stream=true, which the document offers, it is a stream, in which "
        "usage and finish_reason are null before the end, as in the events of chat",
        _streamed_completion,
    ),
)

_REFUSED_FIELDS: Mapping[str, frozenset[str]] = {
    "/responses": frozenset(REFUSED),
    "/chat/completions": frozenset(p.name for p in TABLE if p.fate is Fate.REFUSED),
}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SAID = {"role": "user", "content": "p"}


def leave_out(path: str, body: Json) -> None:
    """Take out what this server refuses by name.

    Args:
        path: of the operation, below the base.
        body: is changed.
    """
    for name in _REFUSED_FIELDS.get(path, ()):
        body.pop(name, None)
    if path == "/chat/completions":
        body["messages"] = [_message(message) for message in body["messages"]]
        body["modalities"] = ["text"]
    if path == "/responses":
        given = body.get("input")
        items = [_item(item) for item in given] if isinstance(given, list) else given
        body["input"] = items or "p"
    if not body.get("stream"):
        body.pop("stream_options", None)
    if body.get("top_logprobs") is not None and path == "/chat/completions":
        body["logprobs"] = True
    _tools(body)


def _message(message: Json) -> Json:
    calls = [call for call in message.get("tool_calls") or () if call.get("type") == "function"]
    if message.get("role") not in _ROLES:
        return dict(_SAID)
    kept = {name: message[name] for name in ("role", "name", "tool_call_id") if name in message}
    if calls:
        kept["tool_calls"] = calls
    content = message.get("content")
    return {**kept, "content": content if isinstance(content, str) and content else "p"}


def _item(item: Any) -> Any:
    kind = item.get("type") if isinstance(item, dict) else None
    if kind not in MODELS or kind == "message":
        return dict(_SAID)
    if kind.endswith("_output"):
        return {**item, "output": "p", "call_id": item.get("call_id") or "c"}
    return item


def _tools(body: Json) -> None:
    """Functions alone; a choice of another tool is none."""
    tools = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = [tool for tool in tools if tool.get("type") == "function" and _name(tool)]
        if not body["tools"]:
            del body["tools"]
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else "function"
    if choice is not None and (kind != "function" or "tools" not in body):
        del body["tool_choice"]


def _name(tool: Json) -> Any:
    return tool.get("function", tool).get("name")
