"""Reads the calls that follow an opening mark, while their text comes in.

A region holds one JSON object, several in a row or a list of them, and ends with its closing mark,
or, where it has none, with the last object. An object is a call when it has the name of a tool that
is offered; from the moment that its arguments have begun it stays one, since they are passed on as
they come. What turns out not to be a call comes out as the text that it is.

    {"name": "f", "arguments": {...}}                         also "parameters"
    {"type": "function", "function": {"name": "f", ...}}      as OpenAI writes calls
    {"name": "f", "arguments": "{...}"}                       arguments as JSON text

White space and separators around calls belong to their form and are no text.
"""

import json
from collections.abc import Callable, Collection

from kokuban.text.call_styles import Opener
from kokuban.text.held import WHITE, mark_at_end
from kokuban.text.json_scan import JsonScanner
from kokuban.text.part_sink import PartSink

_SEPARATORS = ",;}]"
"""What may follow an object of a region: also braces and brackets that are one too many."""

_ARGUMENTS = ("arguments", "parameters")
_KNOWN = (*_ARGUMENTS, "name", "function", "type", "id", "index")

Step = Callable[[str, int], int]


class CallRegion:
    """One region; feed it until it is `done`.

    Args:
        opener: what opened it; an empty one stands for JSON at the start of a line.
        before: the text in front that is to come out if this is no call: the opener, and white
            space before it.
        tools: names that may be called.
        sink: takes the parts.
    """

    def __init__(self, opener: Opener, before: str, tools: Collection[str], sink: PartSink) -> None:
        self.done = False
        self.after_call = False
        """Whether the last object was a call."""

        self._close = opener.close
        self._is_bare = not opener.text
        self._is_tag = opener.text.startswith(("<", "["))
        self._tools = tools
        self._sink = sink
        self._raw = [before]
        """Text of which it is not yet known whether it belongs to a call."""

        self._held = ""
        """The end of what came, which may begin the closing mark."""

        self._as_text = False
        self._failed = False
        self._in_list = False
        self._num_objects = 0
        self._step: Step = self._between
        self._scanner = JsonScanner()
        self._new_object()

    def _new_object(self) -> None:
        self._nesting = 1
        self._key = ""
        self._name: str | None = None
        self._begun = False
        self._value: list[str] = []
        self._arguments: str | None = None
        """Once they are complete; empty when they have been passed on."""

    def feed(self, text: str, at: int) -> int:
        """Take what belongs to the region.

        Returns:
            The index of the first character that does not: the end of the text, unless it is done.
        """
        while at < len(text) and not self.done:
            step = self._step
            end = step(text, at)
            if self._as_text:
                self._sink.text(text[at:end])
            elif not self._begun and step not in (self._closing, self._broken_arguments):
                self._raw.append(text[at:end])
            at = end
            if self._failed:
                self._fail()
        return at

    def finish(self) -> None:
        """The text has ended here."""
        if self._step == self._broken_arguments:
            self._end_arguments()
        elif not self._begun:
            cut = self._step == self._closing and not self.after_call
            self._end(self._held if cut else "")
        self.done = True

    def _release(self, more: str = "") -> None:
        """What was held is no call, and no separator after one either."""
        raw, self._raw = "".join(self._raw), []
        self._sink.text(more if self.after_call else raw + more)

    def _end(self, more: str = "") -> None:
        self._release(more)
        self.done = True

    # Between objects

    def _between(self, text: str, at: int) -> int:
        self._as_text = False
        character = text[at]
        if character == "{":
            self._new_object()
            self._num_objects += 1
            if self.after_call:
                self._raw = []
            self._step = self._first_key
        elif character == "[" and not self._num_objects and not self._in_list:
            self._in_list = True
        elif self._close and character == self._close[0]:
            self._held = ""
            self._step = self._closing
            return at
        elif character not in WHITE and not (self._num_objects and character in _SEPARATORS):
            self._end()
            return at
        return at + 1

    def _closing(self, text: str, at: int) -> int:
        if not self._close.startswith(self._held + text[at]):
            self._end(self._held)
            return at
        self._held += text[at]
        if self._held == self._close:
            self._end("" if self.after_call else self._held)
        return at + 1

    # Inside an object

    def _first_key(self, text: str, at: int) -> int:
        return self._close_object(at) if text[at] == "}" else self._next_key(text, at)

    def _next_key(self, text: str, at: int) -> int:
        if text[at] in WHITE:
            return at + 1
        if text[at] == '"':
            self._scan(self._in_key)
        else:
            self._failed = True
        return at

    def _scan(self, step: Step) -> None:
        self._scanner = JsonScanner()
        self._value = []
        self._step = step

    def _in_key(self, text: str, at: int) -> int:
        at, piece = self._scanner.feed(text, at)
        self._value.append(piece)
        if self._scanner.done:
            self._key = json.loads("".join(self._value))
            self._step = self._colon
        unknown = self._scanner.done and self._is_bare and self._key not in _KNOWN
        self._failed = self._scanner.broken or unknown
        return at

    def _colon(self, text: str, at: int) -> int:
        if text[at] in WHITE:
            return at + 1
        if text[at] != ":":
            self._failed = True
            return at
        self._step = self._value_start
        return at + 1

    def _value_start(self, text: str, at: int) -> int:
        character = text[at]
        if character in WHITE:
            return at + 1
        if self._key == "function" and character == "{":
            self._nesting += 1
            self._step = self._first_key
            return at + 1
        if self._as_text:
            self._scan(self._in_other)
        elif self._key in _ARGUMENTS and self._arguments is None:
            self._failed = character not in '{"n'
            self._scan(self._in_arguments)
        elif self._key in ("name", "function") and character == '"' and self._name is None:
            self._scan(self._in_name)
        else:
            self._scan(self._in_other)
        return at

    def _in_other(self, text: str, at: int) -> int:
        at, _ = self._scanner.feed(text, at)
        return self._scanned(at)

    def _in_name(self, text: str, at: int) -> int:
        at, piece = self._scanner.feed(text, at)
        self._value.append(piece)
        if self._scanner.done:
            self._name = json.loads("".join(self._value))
            if self._name not in self._tools:
                self.after_call = False
                self._release()
                self._as_text = True
        return self._scanned(at)

    def _in_arguments(self, text: str, at: int) -> int:
        at, piece = self._scanner.feed(text, at)
        if self._begun:
            self._sink.arguments(piece)
        else:
            self._value.append(piece)
            if self._name is not None and self._value[0][:1] == "{":
                self._try_to_begin(piece)
        if self._scanner.done:
            self._arguments = "" if self._begun else _as_object("".join(self._value))
            self._failed = self._arguments is None
        return self._scanned(at)

    def _try_to_begin(self, piece: str) -> None:
        """A brace alone may open anything; the scanner takes no more than JSON after it."""
        if piece.strip(WHITE) not in ("", "{"):
            self._begin("".join(self._value))

    def _begin(self, arguments: str) -> None:
        """This is a call, for good."""
        assert self._name is not None
        self._begun = self.after_call = True
        self._raw = []
        self._sink.begin_call(self._name)
        self._sink.arguments(arguments)

    def _scanned(self, at: int) -> int:
        if self._scanner.broken:
            self._failed = True
        elif self._scanner.done:
            self._step = self._after_value
        return at

    def _after_value(self, text: str, at: int) -> int:
        character = text[at]
        if character == "}":
            return self._close_object(at)
        if character == ",":
            self._step = self._next_key
        elif character not in WHITE:
            self._failed = True
            return at
        return at + 1

    def _close_object(self, at: int) -> int:
        self._nesting -= 1
        if self._nesting:
            self._step = self._after_value
            return at + 1
        self._step = self._between
        is_call = self._name is not None and not self._as_text
        if is_call and not self._begun and (self._arguments is not None or self._is_tag):
            self._begin(self._arguments or "{}")
        if not self._begun and not self._as_text:
            self.after_call = False
            self._release()
            self._as_text = True
        self._begun = False
        return at + 1

    # What is no JSON from here on

    def _fail(self) -> None:
        self._failed = False
        if self._begun and self._arguments is not None:
            self._begun = False
            self._step = self._between
        elif self._begun:
            self._value = []
            self._held = ""
            self._step = self._broken_arguments
        else:
            self.after_call = False
            self._release()
            if self._close.startswith("<"):
                self._as_text = True
                self._held = ""
                self._step = self._text_until_close
            else:
                self.done = True

    def _text_until_close(self, text: str, at: int) -> int:
        """Nothing up to the closing mark is read as a call, whatever it quotes."""
        self._held = mark_at_end(self._held + text[at], self._close)
        self.done = self._held == self._close
        return at + 1

    def _broken_arguments(self, text: str, at: int) -> int:
        """The client sees what the model wrote, up to the closing mark."""
        self._value.append(text[at])
        if self._close:
            self._held = mark_at_end(self._held + text[at], self._close)
            if self._held == self._close:
                self._end_arguments()
        return at + 1

    def _end_arguments(self) -> None:
        rest = "".join(self._value)
        if self._close and self._held == self._close:
            rest = rest.removesuffix(self._close).rstrip(WHITE).removesuffix("}")
        self._sink.arguments(rest)
        self.done = True


def _as_object(value: str) -> str | None:
    """Arguments as the JSON text of an object: they may be null or quoted. None: they are none."""
    try:
        found = json.loads(value)
        if isinstance(found, str):
            value, found = found or "{}", json.loads(found or "{}")
            value.encode()  # Half of a surrogate pair could not be sent.
    except (ValueError, RecursionError):
        return None
    if found is None:
        return "{}"
    return value if isinstance(found, dict) else None
