"""The turns of a conversation as blocks, the system prompt first.

Turns of one role that follow each other are one, as with Anthropic: some templates want roles to
alternate. A system message among the turns stays where it is; for a template that takes it in front
only, it becomes a part of the user's turn there, so that nothing in front of it changes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kokuban.core.errors import RequestError
from kokuban.server.messages.billing import without_line
from kokuban.server.messages.models import Block, Conversation


class Placed(NamedTuple):
    """A block, and its path in the request for errors."""

    block: Block
    param: str


class Turn(NamedTuple):
    role: str
    blocks: list[Placed]


def turns_of(body: Conversation, *, keep_billing_line: bool, late_system: bool) -> list[Turn]:
    """All turns, at least one.

    Args:
        keep_billing_line: whether Claude Code's changing line stays in system messages.
        late_system: whether the template takes system messages behind other turns.

    Raises:
        RequestError: a turn is empty; names it.
    """
    turns: list[Turn] = []
    for role, blocks in _all(body):
        if role == "system":
            blocks = blocks if keep_billing_line else _without_billing(blocks)
            if not blocks:
                continue
            is_late = len(turns) > 1 or (turns and turns[0].role != "system")
            if is_late and not late_system:
                role = "user"
        if turns and turns[-1].role == role:
            turns[-1].blocks.extend(blocks)
        else:
            turns.append(Turn(role, blocks))
    if not turns:
        raise wrong("messages", "hold nothing that is said; send at least one message")
    return turns


def wrong(param: str, what: str) -> RequestError:
    """What is wrong with a field."""
    return RequestError(f"{param} {what}", param=param, code="invalid_value")


def _all(body: Conversation) -> Iterator[tuple[str, list[Placed]]]:
    """Role and blocks of each message."""
    if body.system:
        yield "system", _placed(body.system, "system")
    last = len(body.messages) - 1
    for index, message in enumerate(body.messages):
        param = f"messages[{index}].content"
        blocks = _placed(message.content, param)
        if not blocks and (message.role != "assistant" or index < last):
            raise wrong(param, "is empty; only a last assistant turn may be")
        yield message.role, blocks


def _placed(content: str | Sequence[Block], param: str) -> list[Placed]:
    if isinstance(content, str):
        return [Placed(Block.model_construct(type="text", text=content), param)] if content else []
    return [Placed(block, f"{param}[{index}]") for index, block in enumerate(content)]


def _without_billing(blocks: list[Placed]) -> list[Placed]:
    """The blocks of a system message without a billing line in front; a block of which nothing is
    left is left out."""
    if not blocks or blocks[0].block.text is None:
        return blocks
    (block, param), *rest = blocks
    text = without_line(block.text or "")
    if text == block.text:
        return blocks
    return [Placed(block.model_copy(update={"text": text}), param), *rest] if text else rest
