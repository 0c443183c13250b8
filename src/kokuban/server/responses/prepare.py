"""A request becomes a turn: items and tools become a chat that the model can answer.

Nothing of it is kept before there is an answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kokuban.core.errors import PromptTooLong, RequestError
from kokuban.server.errors import HttpError, from_validation
from kokuban.server.openai_models import ChatRequest
from kokuban.server.responses.bodies import FINAL, encode_given
from kokuban.server.responses.items import ItemDict, with_id
from kokuban.server.responses.messages import to_messages
from kokuban.server.responses.request import LOGPROBS, ResponseRequest
from kokuban.server.responses.store import Node, ResponseStore
from kokuban.server.responses.tools import Toolbox, chat_tool_choice, open_toolbox
from kokuban.server.responses.truncation import fit
from kokuban.server.serving import Serving
from kokuban.server.work import off_loop

_SAME = (
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "min_tokens",
    "ignore_eos",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
    "structured_outputs",
    "user",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Fields that mean the same in a chat."""

_PARAMS = (
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("messages", "input"),
)
"""Where an error of the chat is to be looked for in the request, first match first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request with everything that is needed to answer it."""

    body: ResponseRequest
    items: list[ItemDict]
    """What is new in this turn, with ids; references have become what they refer to."""

    previous: Node | None
    """The conversation so far."""

    toolbox: Toolbox
    chat: ChatRequest
    num_bytes: int
    """Of all that the model reads."""


async def prepare(
    serving: Serving, store: ResponseStore, tenant: str, body: ResponseRequest, num_bytes: int
) -> Ask:
    """Find what the request refers to, and make a chat of it.

    Args:
        tenant: whose responses it may refer to.
        num_bytes: length of the body as it was sent.

    Raises:
        RequestError: something in it is wrong, or refers to nothing.
        HttpError: 404 for an item that is not kept, 413 for more than a body may hold.
    """
    if body.input is None and body.previous_response_id is None:
        raise RequestError("input is missing; send a text or a list of items", param="input")
    previous = _previous(store, tenant, body.previous_response_id)
    limit = serving.settings.max_body_bytes
    items, num_referred = _resolved(store, tenant, body.items, limit)
    toolbox = open_toolbox([tool.model_dump(exclude_unset=True) for tool in body.tools or ()])
    total = num_bytes + num_referred + (previous.total_bytes if previous else 0)

    def work() -> ChatRequest:
        before = previous.conversation() if previous else []
        return _chat(serving, body, [*before, *items], toolbox)

    chat = await off_loop(work, total)
    if body.truncation == "auto":
        await fit(serving, chat, total)
    return Ask(
        body=body, items=items, previous=previous, toolbox=toolbox, chat=chat, num_bytes=total
    )


def _previous(store: ResponseStore, tenant: str, response_id: str | None) -> Node | None:
    """The conversation that a response ends."""
    if response_id is None:
        return None
    entry = store.find(tenant, response_id)
    if entry is None:
        raise RequestError(
            f"Previous response with id {response_id!r} not found. It was not stored, or it is "
            f"kept no longer; send the whole conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if entry.status not in FINAL or entry.status == "failed":
        raise RequestError(
            f"the response {response_id!r} is {entry.status}; only one that has an answer can be "
            f"continued",
            param="previous_response_id",
            code="previous_response_not_ready",
        )
    return entry.node


def _resolved(
    store: ResponseStore, tenant: str, given: Sequence[ItemDict], limit: int
) -> tuple[list[ItemDict], int]:
    """The items with their ids, references replaced; how many bytes what is referred to has.

    A reference is short, and may stand for a long item as often as it likes: together they are no
    more than a body may be.
    """
    found: dict[str, tuple[ItemDict, int]] = {}
    items: list[ItemDict] = []
    num_bytes = 0
    for item in given:
        if item["type"] != "item_reference":
            items.append(with_id(item))
            continue
        name = item["id"]
        if name not in found:
            whole = _referred(store, tenant, name)
            found[name] = whole, len(encode_given(whole))
        whole, size = found[name]
        num_bytes += size
        if num_bytes > limit:
            raise HttpError(
                413,
                f"the items that input refers to have more than {limit} bytes together; send "
                f"less, or start the server with a larger --max-body-size",
                code="body_too_large",
            )
        items.append(whole)
    return items, num_bytes


def _referred(store: ResponseStore, tenant: str, item_id: str) -> ItemDict:
    found = store.item(tenant, item_id)
    if found is None:
        raise HttpError(
            404,
            f"Item with id {item_id[:64]!r} not found. Items are kept with their response, "
            f"unless `store` is false; send the item itself.",
            code="item_not_found",
        )
    return found


def _chat(
    serving: Serving, body: ResponseRequest, items: Sequence[ItemDict], toolbox: Toolbox
) -> ChatRequest:
    messages = to_messages(body.instructions, items)
    if not messages:
        raise RequestError("input is empty; send at least one item", param="input")
    fields: dict[str, Any] = {name: getattr(body, name) for name in _SAME}
    if body.prompt_cache_options is not None:
        fields["prompt_cache_options"] = body.prompt_cache_options.model_dump()
    if body.cache_control is not None:
        fields["cache_control"] = body.cache_control.model_dump()
    if body.wants(LOGPROBS):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    fields |= {
        "model": body.model or serving.info.model,
        "messages": messages,
        "tools": toolbox.functions or None,
        "tool_choice": chat_tool_choice(body.tool_choice, toolbox),
        "max_completion_tokens": body.max_output_tokens,
        "response_format": _response_format(body),
        "stream": bool(body.stream and not body.background),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
    }
    if not toolbox.functions:
        fields["parallel_tool_calls"] = None
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise in_our_words(from_validation(error)) from None


def _response_format(body: ResponseRequest) -> dict[str, Any] | None:
    """`text.format` as chat completions have it."""
    form = body.text.format if body.text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    given = form.model_dump(by_alias=True, exclude_unset=True)
    return {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}


def in_our_words(error: RequestError) -> RequestError:
    """An error of a chat, as an error of the request that became the chat."""
    param, text = error.param, str(error)
    for theirs, ours in _PARAMS:
        if param and re.match(rf"{re.escape(theirs)}(?![a-z_])", param):
            text = text.replace(theirs, ours)
            # A message's number says nothing to who sent items.
            param = ours if ours == "input" else ours + param.removeprefix(theirs)
            break
    if param == error.param:
        param = re.sub(r"^(tools\[\d+\])\.function", r"\1", param) if param else param
    if isinstance(error, PromptTooLong) or param != error.param:
        return RequestError(text, param=param, code=error.code)
    return error
