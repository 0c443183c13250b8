"""Cuts the text of an answer into words and tool calls, while it comes in.

What comes out depends on the text alone, not on the pieces in which it came: only the end of a text
that may still become an opening mark, and white space that may stand before a call, are held back.
"""

import re
from collections.abc import Mapping, Sequence

from kokuban.text.call_region import CallRegion
from kokuban.text.call_styles import CallStyle, Opener
from kokuban.text.code_region import CodeRegion
from kokuban.text.held import WHITE, end_of_words, mark_at_end
from kokuban.text.part_sink import PartSink

_BARE = Opener("")
_LINE_START = r"^[ \t]{0,32}(?=[\[{])"


class CallParser:
    """See the module.

    Args:
        style: how the model's family writes calls.
        tools: names that may be called, each with the names of its parameters in their order.
        sink: takes the parts.
    """

    def __init__(
        self, style: CallStyle, tools: Mapping[str, Sequence[str]], sink: PartSink
    ) -> None:
        self._tools = tools
        self._sink = sink
        self._openers = {opener.text: opener for opener in style.openers}
        texts = sorted(self._openers, key=len, reverse=True)
        forms = [re.escape(text) for text in texts] + ([_LINE_START] if style.bare else [])
        self._find = re.compile("|".join(forms), re.MULTILINE)
        self._region: CallRegion | CodeRegion | None = None
        self._buffer = "\n"
        """What is not yet decided, behind the character that stands before it."""

        self._after_call = False

    def feed(self, text: str) -> None:
        """Take a piece."""
        self._buffer += text
        at = 1
        while at < len(self._buffer):
            if self._region is None:
                end = self._words(at)
                if self._region is None:
                    at = end
                    break
            else:
                end = self._region.feed(self._buffer, at)
            if self._region.done:
                self._close_region(self._region)
            at = end
        self._buffer = self._buffer[at - 1 :]

    def finish(self) -> None:
        """The answer has ended."""
        if self._region is None:
            self._say(self._buffer[1:])
        else:
            self._region.finish()

    def _words(self, at: int) -> int:
        """Say what is surely no call; returns where the rest begins."""
        buffer = self._buffer
        found = self._find.search(buffer, at)
        if found is None:
            end = self._certain(at)
            self._say(buffer[at:end])
            return end
        mark = found[0].strip(WHITE)
        begin = end_of_words(buffer, at, found.end() - len(mark))
        self._say(buffer[at:begin])
        seen = buffer[found.start() :].lstrip(" \t")
        if any(text.startswith(seen) and text != seen for text in self._openers):
            return begin  # It may still become another, longer opener.
        opener = self._openers.get(mark, _BARE)
        kind = CodeRegion if opener.is_code else CallRegion
        self._region = kind(opener, buffer[begin : found.end()], self._tools, self._sink)
        return found.end()

    def _certain(self, at: int) -> int:
        """The end of the text that can neither become an opener nor stand before one."""
        tails = (mark_at_end(self._buffer, text, at) for text in self._openers)
        held = max(map(len, tails), default=0)
        return end_of_words(self._buffer, at, len(self._buffer) - held)

    def _say(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip(WHITE)
        if text:
            self._after_call = False
            self._sink.text(text)

    def _close_region(self, region: CallRegion | CodeRegion) -> None:
        self._after_call = region.after_call
        self._region = None
