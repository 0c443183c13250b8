"""How much of a text that is still coming must be held back."""

WHITE = " \t\r\n"
MAX_WHITE = 64
"""White space that is held back before a mark. More of it is text: a model that writes nothing else
must not make each piece cost more than the last."""


def mark_at_end(text: str, mark: str, start: int = 0) -> str:
    """The longest end of text[start:] that begins the mark, or is all of it."""
    at = text.find(mark[0], max(start, len(text) - len(mark)))
    while at >= 0:
        if mark.startswith(text[at:]):
            return text[at:]
        at = text.find(mark[0], at + 1)
    return ""


def end_of_words(text: str, start: int, end: int) -> int:
    """Where text[start:end] ends without the white space at its end, of which so much counts."""
    first = max(start, end - MAX_WHITE)
    return first + len(text[first:end].rstrip(WHITE))
