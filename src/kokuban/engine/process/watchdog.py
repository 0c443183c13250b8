"""When an engine process that lives has stopped working.

    silent       nothing at all comes from it, not even a heartbeat: stopped, or stuck
    stuck        it speaks, but requests wait and no step has ended for very long

Time is counted in ticks of the one who watches, so that it does not run while that one stands still
itself (a suspended machine, a stopped process group).
"""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Tells when to give an engine process up."""

    max_silence_s: float = 30.0
    """Heartbeats come every second; a loaded machine, or an import, may hold some up."""

    max_step_s: float = 600.0
    """A whole prompt in one step of a large model takes a minute on a slow machine."""

    tick_s: float = 1.0
    """The time between two ticks. A late one counts as two at most."""

    _silent_s: float = 0.0
    _stuck_s: float = 0.0
    _steps: int = -1

    def hear(self, num_steps: int | None) -> None:
        """A message came; `num_steps`: how many steps have ended, if it says so."""
        self._silent_s = 0.0
        if num_steps is not None and num_steps != self._steps:
            self._stuck_s = 0.0
            self._steps = num_steps

    def tick(self, elapsed_s: float, *, busy: bool) -> str | None:
        """Time has passed; returns what is wrong, if something is.

        Args:
            busy: whether anybody waits for the engine.
        """
        elapsed_s = min(elapsed_s, 2 * self.tick_s)
        self._silent_s += elapsed_s
        self._stuck_s = self._stuck_s + elapsed_s if busy else 0.0
        if self._silent_s > self.max_silence_s:
            return f"has said nothing for {self.max_silence_s:g} s"
        if self._stuck_s > self.max_step_s:
            return f"has ended no step for {self.max_step_s:g} s, and requests wait"
        return None
