"""What the shapes of all answers have in common: names, usage and the words for the end."""

import time

from msgspec import UNSET, UnsetType

from kokuban.core.request import FinishReason
from kokuban.server.errors import Failure
from kokuban.server.openai_models import StreamOptions
from kokuban.server.openai_responses import DONE, Finish, UsageBody, event_of
from kokuban.server.record import Record
from kokuban.server.serving import Serving

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not; OpenAI's number for it."""


class FormBase:
    """Constant parts of one answer.

    Args:
        serving: whose model answers.
        options: what a stream shows of the usage.
        record: counts the tokens.
        answer_id: the id of the answer.
    """

    def __init__(
        self, serving: Serving, options: StreamOptions | None, record: Record, answer_id: str
    ) -> None:
        self.id = answer_id
        self.created = int(time.time())
        self.model = serving.info.model
        self.fingerprint = serving.fingerprint
        self.tokenizer = serving.model.tokenizer
        self.record = record
        self.usage_at_end = bool(options and options.include_usage)
        self.usage_always = self.usage_at_end and bool(options and options.continuous_usage_stats)

    def usage_field(self, *, is_last: bool) -> UsageBody | UnsetType | None:
        """The `usage` of a stream's chunk: a value, null, or not there at all."""
        if is_last or self.usage_always:
            return self.record.usage_body()
        return None if self.usage_at_end else UNSET

    def failed(self, failure: Failure) -> bytes:
        """The error as OpenAI's streams show it, and their end."""
        return event_of(failure.encode()) + DONE


def finish_word(finish: FinishReason | None) -> Finish:
    """The API's word for an end that is no failure; failures never come this far."""
    assert finish in (FinishReason.STOP, FinishReason.LENGTH), finish
    return "stop" if finish is FinishReason.STOP else "length"
