"""Says when a full queue is worth another try, from how fast requests have been leaving it."""

import math

MAX_RETRY_S = 60
_SMOOTHING = 0.2
"""Weight of the newest interval: about the last ten admissions count."""

_LONG = 50
"""Admissions in the long mean: seats become free in bursts, between which intervals are long."""


class Pace:
    """A moving average of the seconds between two admissions while others waited."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._interval_s = 0.0
        self._long_s, self._num_intervals = 0.0, 0

    def note_admission(self, now_s: float, *, others_wait: bool) -> None:
        """A waiting request was admitted, which left a place in the queue."""
        if self._last_s is not None:
            elapsed = max(0.0, now_s - self._last_s)
            self._interval_s += _SMOOTHING * (elapsed - self._interval_s)
            self._num_intervals = min(_LONG, self._num_intervals + 1)
            self._long_s += (elapsed - self._long_s) / self._num_intervals
        # Without others the next interval would measure how long nobody came.
        self._last_s = now_s if others_wait else None

    def wait_s(self, num_places: int, guess_s: float = 0.0) -> float:
        """Seconds until so many are likely to have been admitted, rather too many than too few.

        Args:
            guess_s: as of `retry_after_s`.
        """
        return (max(self._interval_s, self._long_s) or guess_s) * num_places

    def retry_after_s(self, num_places: int, guess_s: float = 0.0) -> int:
        """Whole seconds, 1 to 60, after which so many places have likely become free.

        Args:
            guess_s: seconds for one place, for as long as nothing has been measured.
        """
        return whole_seconds((self._interval_s or guess_s) * num_places)


def whole_seconds(wait_s: float) -> int:
    """A time to wait, as it is told to clients: 1 to 60."""
    return min(MAX_RETRY_S, max(1, math.ceil(wait_s)))
