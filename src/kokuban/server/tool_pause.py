"""Pauses a session when an answer of it calls tools: until their results come, nobody needs its KV.

The pause is on its way before the client sees the end of the answer, so that the next request of
the session, which ends the pause, cannot come before it.
"""

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kokuban.core.errors import KokubanError
from kokuban.core.request import FinishReason
from kokuban.engine.client import EngineClient
from kokuban.engine.generation import TextDelta
from kokuban.text.parts import CallPart

_log = logging.getLogger(__name__)


async def pausing(
    deltas: AsyncGenerator[TextDelta], client: EngineClient, *, n: int, tenant: str, session: str
) -> AsyncGenerator[TextDelta]:
    """The same deltas; before the last one, the session is paused if any choice calls a tool.

    Args:
        deltas: with their parts.
        n: how many choices there are.
        tenant, session: whose answer it is.
    """
    called: defaultdict[int, set[str]] = defaultdict(set)
    num_open = n
    async with aclosing(deltas):
        async for delta in deltas:
            names = (part.name for part in delta.parts if isinstance(part, CallPart))
            called[delta.choice].update(name for name in names if name is not None)
            if delta.finish is not None:
                num_open -= 1
                if delta.finish is not FinishReason.STOP:
                    del called[delta.choice]  # It was cut off: nobody runs what it calls.
                tools = set[str]().union(*called.values())
                if num_open == 0 and tools:
                    await _pause(client, tenant, session, sorted(tools))
            yield delta


async def _pause(client: EngineClient, tenant: str, session: str, tools: Sequence[str]) -> None:
    try:
        await client.pause_session(tenant, session, expected_s=None, tools=tools)
    except KokubanError as error:  # The answer is complete; it must not fail for this.
        _log.warning("a session could not be paused: %s", error)
