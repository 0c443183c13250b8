"""Gathers the parts of an answer as its parsers find them."""

from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart


class PartSink:
    """Neighbours of one kind become one part.

    Args:
        max_calls: further calls are dropped; None: there is no limit.
    """

    def __init__(self, max_calls: int | None = None) -> None:
        self._num_calls = 0
        self._max_calls = max_calls
        self._parts: list[Part] = []

    def take(self) -> tuple[Part, ...]:
        """The parts since the last time."""
        parts, self._parts = tuple(self._parts), []
        return parts

    def text(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, TextPart):
            self._parts[-1] = TextPart(last.text + text)
        elif text:
            self._parts.append(TextPart(text))

    def reasoning(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, ReasoningPart):
            self._parts[-1] = ReasoningPart(last.text + text)
        elif text:
            self._parts.append(ReasoningPart(text))

    def begin_call(self, name: str) -> None:
        self._num_calls += 1
        if not self._too_many:
            self._parts.append(CallPart(self._num_calls - 1, name, ""))

    def arguments(self, text: str) -> None:
        """More of the call that was begun last."""
        if not text or self._too_many:
            return
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallPart) and last.name is None:
            self._parts[-1] = last._replace(arguments=last.arguments + text)
        else:
            self._parts.append(CallPart(self._num_calls - 1, None, text))

    @property
    def _too_many(self) -> bool:
        return self._max_calls is not None and self._num_calls > self._max_calls
