"""`truncation: auto`: leaves out the oldest turns of a conversation that is too long.

A turn goes from one user message to the next, so that no call loses its result. System messages at
the head stay, and so does the last turn.
"""

from collections.abc import Sequence

from kokuban.core.errors import RequestError
from kokuban.server.openai_models import ChatRequest, Message
from kokuban.server.serving import Serving


async def fit(serving: Serving, chat: ChatRequest, num_bytes: int) -> None:
    """Shorten a chat in place until it fits, by as few turns as possible.

    One that cannot be made to fit keeps its last turn, and is refused later like any other.

    Args:
        num_bytes: of all messages.
    """
    context = serving.info.max_context_tokens
    # The answer needs room too, and half of the context is enough for any that says no number.
    limit = context - min(chat.max_completion_tokens or context // 8, context // 2)
    messages = list(chat.messages)
    head, starts = _turns(messages)

    async def fits(num_dropped: int) -> bool:
        chat.messages = messages[:head] + messages[starts[num_dropped] :]
        try:
            return len(await serving.encode_chat(chat, num_bytes)) <= limit
        except RequestError as error:
            if error.code == "context_length_exceeded":
                return False
            raise

    low, high = 0, len(starts) - 1
    if not starts or await fits(0):
        return
    while low < high:
        middle = (low + high) // 2
        if await fits(middle):
            high = middle
        else:
            low = middle + 1
    chat.messages = messages[:head] + messages[starts[high] :]


def _turns(messages: Sequence[Message]) -> tuple[int, list[int]]:
    """Where the head ends, and where each turn begins."""
    roles = [message.role for message in messages]
    head = next(
        (place for place, role in enumerate(roles) if role not in ("system", "developer")),
        len(roles),
    )
    starts = [place for place, role in enumerate(roles) if role == "user" and place > head]
    return head, [head, *starts] if head < len(roles) else []
