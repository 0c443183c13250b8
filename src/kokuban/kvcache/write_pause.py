"""Decides when a disk that refused to be written is tried again."""

import logging
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds that never go backwards."""

_FIRST_S = 10.0
_LONGEST_S = 300.0

_LOG = logging.getLogger(__name__)


class WritePause:
    """A pause after each failure in a row, twice as long as the one before, up to five minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._length_s = 0.0
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether it is too early to try again."""
        return bool(self._length_s) and self._clock() < self._until

    def failed(self, error: Exception) -> None:
        """Begin a pause; the first failure in a row is worth a warning."""
        if not self._length_s:
            _LOG.warning(
                "KV blocks cannot be written to disk (%s); reading goes on, writing is tried "
                "again from time to time",
                error,
            )
        self._length_s = min(self._length_s * 2 or _FIRST_S, _LONGEST_S)
        self._until = self._clock() + self._length_s

    def succeeded(self) -> None:
        """Forget earlier failures."""
        if self._length_s:
            _LOG.info("KV blocks are written to disk again")
            self._length_s = 0.0
