"""Time as a value that is handed in, so that tests and simulations bring their own."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes backwards. Its zero means nothing; only differences do."""

    def now(self) -> float:
        """Seconds."""
        ...


class SystemClock:
    """The machine's steady clock: `time.monotonic`, not moved by changes of the wall clock."""

    def now(self) -> float:
        return time.monotonic()
