"""The events of a response in the background: written once, read by whoever comes."""

import asyncio


class EventLog:
    """The events of a response so far. An event's place is its sequence number."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_complete = False
        self.is_lost = False
        """There was no room for them; readers are told so."""

        self._news = asyncio.Event()

    def add(self, frames: list[bytes], *, last: bool = False) -> None:
        """Append events and wake whoever waits for them."""
        if self.is_lost:
            return
        self.frames += frames
        self.is_complete = last
        self._wake()

    def give_up(self) -> None:
        """Keep none of them any more."""
        self.frames = []
        self.is_complete = self.is_lost = True
        self._wake()

    async def until(self, position: int, timeout_s: float) -> bool:
        """Wait for an event at this place, or for the end; False when neither came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.frames) <= position and not self.is_complete:
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
