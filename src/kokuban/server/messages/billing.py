"""Claude Code's billing line, which would keep every prompt from being found in the cache.

Its system prompt begins with a line such as

    x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=a1b2c;

that differs from request to request. It says nothing to a model, and whatever stands behind it
would have to be computed again each time.
"""

from collections.abc import Sequence

from kokuban.server.messages.models import Block

MARK = "x-anthropic-billing-header:"


def without_line(text: str) -> str:
    """A system prompt without a billing line at its beginning."""
    if not text.startswith(MARK):
        return text
    return text.partition("\n")[2].lstrip("\r\n")


def without_block(blocks: Sequence[Block]) -> list[Block]:
    """The same for a system prompt in blocks; a block of which nothing is left is left out."""
    first, *rest = blocks
    if first.text is None or not first.text.startswith(MARK):
        return [first, *rest]
    text = without_line(first.text)
    return [first.model_copy(update={"text": text}), *rest] if text else rest
