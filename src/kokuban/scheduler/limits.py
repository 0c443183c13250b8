"""What a request may ask for, and how many may wait: checked before anything is queued."""

import sys
from collections.abc import Callable

from kokuban.core.config import SchedulerConfig
from kokuban.core.errors import Overloaded, PromptTooLong, RequestError
from kokuban.core.request import Request
from kokuban.scheduler.pace import Pace, whole_seconds

WAIT_MARGIN = 0.8
"""Share of the longest wait up to which newcomers are taken: the pace changes while they wait."""


class Limits:
    """Values that do not change while the engine runs.

    Args:
        max_context_tokens: prompt and output of one request together, as model and pool allow.
    """

    def __init__(self, config: SchedulerConfig, max_context_tokens: int) -> None:
        self._config = config
        self.max_context_tokens = min(max_context_tokens, config.max_context_tokens or sys.maxsize)

    def max_output_tokens(self, request: Request) -> int:
        """What the client asked for, cut to the context.

        Raises:
            PromptTooLong, RequestError: the request can never run.
        """
        num_prompt = len(request.prompt_token_ids)
        if num_prompt == 0:
            raise RequestError("the prompt has no tokens; send at least one", param="prompt")
        room = self.max_context_tokens - num_prompt
        if request.pooling is not None:
            if room < 0:
                raise PromptTooLong(num_prompt, self.max_context_tokens, continues=False)
            return 0
        wanted = request.params.max_tokens
        # A prompt that is only scored may fill the context.
        if room < 0 or (room == 0 and wanted != 0):
            raise PromptTooLong(num_prompt, self.max_context_tokens)
        return room if wanted is None else min(wanted, room)

    def check_room(
        self, num_new: int, running: int, waiting: int, pace: Pace, guess_s: Callable[[], float]
    ) -> None:
        """Refuse what would wait beyond the limit.

        Requests that can be begun in the next step because seats are free do not count: an idle
        engine takes a burst, however short its queue may be.

        Args:
            guess_s: seconds that one more request takes, while `pace` has measured nothing; asked
                only when there is no room.

        Raises:
            RequestError: more choices at once than could ever be there.
            Overloaded: no room for all of them now.
        """
        max_running = self._config.max_running_requests
        max_waiting = self._config.max_waiting_requests
        if num_new > max_running + max_waiting:
            raise RequestError(
                f"{num_new} choices or inputs at once are more than the {max_running} that may run "
                f"and the {max_waiting} that may wait; ask for fewer",
                param="n",
            )
        if refusal := self._refusal(num_new, running, waiting, pace, guess_s):
            text, retry_after_s = refusal
            raise Overloaded(f"{text}; try again in {retry_after_s} s", retry_after_s=retry_after_s)

    def retry_after_s(self, running: int, waiting: int, pace: Pace) -> int:
        """Whole seconds after which one more request is likely to be taken; 0: now."""
        refusal = self._refusal(1, running, waiting, pace, lambda: 0.0)
        return refusal[1] if refusal else 0

    def _refusal(
        self, num_new: int, running: int, waiting: int, pace: Pace, guess_s: Callable[[], float]
    ) -> tuple[str, int] | None:
        """Why there is no room now, and when to try again."""
        max_running = self._config.max_running_requests
        max_waiting = self._config.max_waiting_requests
        num_ahead = running + waiting + num_new - max_running  # Below 1: there are seats for all.
        if num_ahead > max_waiting:
            return (
                f"{running} requests run and {waiting} wait already; the limits are {max_running} "
                f"and {max_waiting}",
                pace.retry_after_s(num_ahead - max_waiting, guess_s()),
            )
        limit_s = self._config.max_queue_wait_s
        if limit_s is None or (num_ahead < 1 and not waiting):
            return None
        wait_s = pace.wait_s(max(num_ahead, waiting), guess_s())
        if wait_s <= limit_s * WAIT_MARGIN:
            return None
        return (
            f"{waiting} requests wait already, so that this one would wait about {wait_s:.1f} s, "
            f"and the limit is {limit_s:g} s",
            whole_seconds(wait_s - limit_s * WAIT_MARGIN),
        )
