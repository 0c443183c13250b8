"""The text of one response, from its token ids: decoded, held back, stopped.

One `TextStream` for each choice; streamed and whole answers go through it alike, so they are equal.
It knows at which token a stop was complete (`num_tokens`): tokens that the engine made after it are
neither sent nor counted.

Kinds of stops, in the order in which a token meets them: an end token (hidden, unless the stop is
to be included); a stop string that equals the text of a special token, which counts even where
special tokens are hidden from the text; a stop string in the visible text.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kokuban.text.detokenizer import Detokenizer
from kokuban.text.stops import StopMatch, StopMatcher
from kokuban.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """What one token adds."""

    text: str
    stopped: bool = False
    stop: str | None = None
    """The stop string that was found; None for an end token."""


class TextStream:
    """See the module.

    Args:
        tokenizer: the vocabulary.
        stops: stop strings of the request.
        end_token_ids: ids that end the text: the client's, and the model's unless ignored.
        include_stop: leave the stop string or end token in the text.
        skip_special: leave special tokens out of the text.
        continues: the text goes on from the prompt (completions); see `Detokenizer`.
        min_tokens: stops that are complete within so many tokens do not count.
        shown: special tokens that are text even where others are not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        end_token_ids: Collection[int] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        continues: bool = False,
        min_tokens: int = 0,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = Detokenizer(
            tokenizer, skip_special=skip_special, continues=continues, shown=shown
        )
        self._matcher = StopMatcher(stops)
        self._stops = frozenset(stops)
        self._end_ids = frozenset(end_token_ids)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._stopped = False

    @property
    def num_tokens(self) -> int:
        """Tokens that count: all that were fed, up to and with the one that completed a stop."""
        return self._num_tokens

    @property
    def stopped(self) -> bool:
        return self._stopped

    def feed(self, token_id: int) -> StreamDelta:
        """Add a token. After a stop further tokens change nothing."""
        if self._stopped:
            return StreamDelta("", stopped=True)
        self._num_tokens += 1
        if token_id in self._end_ids:
            return self._end(self._tokenizer.token_text(token_id), None)
        may_stop = self._num_tokens > self._min_tokens
        if may_stop and self._tokenizer.is_special(token_id):
            text = self._tokenizer.token_text(token_id)
            if text in self._stops:
                return self._end(text, text)
        return self._released(self._matcher.feed(self._decoder.feed(token_id), may_stop=may_stop))

    def finish(self) -> str:
        """The rest of a text that ended without a stop: by length, or cancelled."""
        if self._stopped:
            return ""
        self._stopped = True
        # An unfinished character may complete a stop string only if that holds U+FFFD.
        may_stop = self._num_tokens > self._min_tokens
        rest = self._matcher.feed(self._decoder.finish(), may_stop=may_stop)
        delta = self._released(rest)
        return delta.text if delta.stop is not None else delta.text + self._matcher.finish()

    def _end(self, text: str, stop: str | None) -> StreamDelta:
        """Stop at a token whose own text is not part of the answer."""
        rest = self.finish()
        return StreamDelta(rest + text if self._include_stop else rest, stopped=True, stop=stop)

    def _released(self, found: str | StopMatch) -> StreamDelta:
        if isinstance(found, str):
            return StreamDelta(found)
        self._stopped = True
        text = found.text + found.stop if self._include_stop else found.text
        return StreamDelta(text, stopped=True, stop=found.stop)
