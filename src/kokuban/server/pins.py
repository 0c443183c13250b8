"""From marks and retentions of a request to pins: what of its KV is to be kept, and how long.

    prompt_cache_breakpoint   OpenAI: up to the end of the part that has it, 30 minutes
    prompt_cache_options      OpenAI: the whole prompt too, unless the mode is "explicit"
    prompt_cache_retention    OpenAI: "24h" makes a day of the 30 minutes
    cache_control             Anthropic: up to the end of what has it, 5 minutes or 1 hour

What a request without any of them computed is kept as long as there is room: a pin only says that
other KV is to make room first. How much a tenant may pin is decided by the engine.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kokuban.core.errors import RequestError
from kokuban.core.request import Pin
from kokuban.server.cache_models import (
    DEFAULT_TTL_S,
    EXTENDED_TTL_S,
    CacheFields,
    Marked,
)
from kokuban.server.openai_models import ChatRequest, Message
from kokuban.server.serving import Serving
from kokuban.server.work import off_loop
from kokuban.text.breakpoints import Conversation, Place

MAX_MARKS = 4
"""Of one request; of OpenAI's the last ones count, more of Anthropic's are refused, as by them."""


class _Mark(NamedTuple):
    place: Place
    ttl_s: float
    is_control: bool


async def chat_pins(
    serving: Serving, body: ChatRequest, prompt: Sequence[int], num_bytes: int
) -> tuple[Pin, ...]:
    """What a chat asks to keep.

    Args:
        prompt: the ids of its conversation.
        num_bytes: length of the body as it was sent.

    Raises:
        RequestError: it has too many marks.
    """
    marks = list(_marks(body))
    num_controls = sum(mark.is_control for mark in marks) + (body.cache_control is not None)
    if num_controls > MAX_MARKS:
        raise RequestError(
            f"there are {num_controls} cache_control marks; a request may have {MAX_MARKS}",
            param="cache_control",
        )
    whole = prompt_pins(body, len(prompt), has_marks=bool(marks))
    chosen = marks[-(MAX_MARKS - len(whole)) :]
    if not chosen or len(prompt) >= serving.info.max_context_tokens:
        return whole  # A prompt that is too long is refused by the engine, with marks or without.
    conversation = Conversation(
        template=serving.chat_template,
        messages=body.plain_messages(),
        tools=body.plain_tools(),
        kwargs=body.template_kwargs(),
        prompt=prompt,
    )

    def work() -> tuple[Pin, ...]:
        found = (Pin(conversation.num_tokens_before(m.place), m.ttl_s) for m in chosen)
        return tuple(pin for pin in found if pin.num_tokens)

    # Each mark has the conversation encoded up to twice.
    return await off_loop(work, 2 * len(chosen) * num_bytes) + whole


def prompt_pins(body: CacheFields, num_tokens: int, *, has_marks: bool = False) -> tuple[Pin, ...]:
    """The pin of a whole prompt, if one is asked for.

    Args:
        num_tokens: of the prompt.
        has_marks: whether the request says by marks what it wants kept.
    """
    options = body.prompt_cache_options
    mode = (options.mode if options else None) or "implicit"
    ttls_s = [] if body.cache_control is None else [body.cache_control.ttl_s]
    is_wanted = options is not None or (_is_extended(body) and not has_marks)
    if is_wanted and mode == "implicit":
        ttls_s.append(_ttl_s(body))
    return (Pin(num_tokens, max(ttls_s)),) if ttls_s else ()


def asks_to_keep(body: ChatRequest) -> bool:
    """Whether a request has any of Anthropic's marks."""
    return body.cache_control is not None or any(mark.is_control for mark in _marks(body))


def _is_extended(body: CacheFields) -> bool:
    return body.prompt_cache_retention == "24h"


def _ttl_s(body: CacheFields) -> float:
    """How long OpenAI's breakpoints last."""
    return EXTENDED_TTL_S if _is_extended(body) else DEFAULT_TTL_S


def _marks(body: ChatRequest) -> Iterator[_Mark]:
    """All marks of the tools and messages, in the order of the prompt."""
    ttl_s = _ttl_s(body)
    for tool in body.tools or ():
        yield from _marks_of(tool, Place(-1), ttl_s)
        yield from _marks_of(tool.function, Place(-1), ttl_s)
    for index, message in enumerate(body.messages):
        for place, carrier in _carriers(index, message):
            yield from _marks_of(carrier, place, ttl_s)


def _carriers(index: int, message: Message) -> Iterator[tuple[Place, Marked]]:
    if isinstance(message.content, list):
        for number, part in enumerate(message.content):
            if isinstance(part, Marked):
                yield Place(index, number), part
    for call in message.tool_calls or ():
        yield Place(index), call
    yield Place(index), message


def _marks_of(carrier: Marked, place: Place, ttl_s: float) -> Iterator[_Mark]:
    if carrier.prompt_cache_breakpoint is not None:
        yield _Mark(place, ttl_s, is_control=False)
    if carrier.cache_control is not None:
        yield _Mark(place, carrier.cache_control.ttl_s, is_control=True)
