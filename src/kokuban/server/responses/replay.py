"""Shows the events of a response that runs in the background, from anywhere in them.

A reader that leaves, or reads slowly, changes nothing for the run or for other readers: all of them
read the one log at their own pace.
"""

from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse

from kokuban.server.responses.event_log import EventLog
from kokuban.server.responses.events import Error, write

_LOST = (
    "there is no room to keep the events of this response; it goes on, and can be asked for "
    "without stream"
)
_PING = b": still working\n\n"
_MAX_BATCH = 256
"""Events that are sent at once to who has much to catch up with."""


def replay(log: EventLog, position: int, *, ping_s: float) -> StreamingResponse:
    """The events from a place on, those that are still to come included.

    Args:
        position: sequence number of the first event to be shown.
        ping_s: time without an event after which a comment is sent.
    """
    return StreamingResponse(
        _frames(log, position, ping_s),
        media_type="text/event-stream",
        headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
    )


async def _frames(log: EventLog, position: int, ping_s: float) -> AsyncGenerator[bytes]:
    while True:
        if not await log.until(position, ping_s):
            yield _PING
            continue
        if log.is_lost:
            yield write(Error(code="events_lost", message=_LOST, sequence_number=position))
            return
        if position >= len(log.frames):
            return
        frames = log.frames[position : position + _MAX_BATCH]
        position += len(frames)
        yield b"".join(frames)
