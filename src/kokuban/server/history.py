"""Remembers the latest requests of each tenant with their tokens, to explain what the cache did.

Owns: one bounded ring for each tenant. A question looks into the ring of the tenant who asks and
into no other, so that nobody learns of anybody else's requests, nor pushes them out.

Lives on the event loop. Comparing may be done by a worker thread: see `nearest`.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kokuban.server.record import Record

MAX_TOKENS = 2**22
"""Tokens that are remembered of all tenants together: 16 MiB."""

PROMPT_TOKENS = 64
"""What each prompt of a request but one counts beside its tokens: it costs memory and time too,
however short it is."""


class _Ring:
    """The requests of one tenant, oldest first."""

    def __init__(self) -> None:
        self.records: OrderedDict[str, Record] = OrderedDict()
        self.sizes: dict[str, int] = {}
        """By request: what it counts, outputs only once it has ended."""

        self.num_tokens = 0
        """Of all of them."""

    def put(self, record: Record) -> None:
        """Add a request, or count anew one that is there."""
        size = record.num_remembered + PROMPT_TOKENS * (len(record.prompts) - 1)
        self.num_tokens += size - self.sizes.get(record.request_id, 0)
        self.sizes[record.request_id] = size
        self.records[record.request_id] = record

    def drop(self, record: Record) -> None:
        """Let go of a request and of its tokens, also while it runs."""
        del self.records[record.request_id]
        self.num_tokens -= self.sizes.pop(record.request_id)
        record.on_end = None
        record.prompts, record.outputs = [], {}


class History:
    """The latest requests.

    Args:
        max_requests: of one tenant; 0: none is remembered.
        max_tokens: tells how many of one tenant, prompts and outputs together; asked each time,
            since tenants that share `MAX_TOKENS` may come while the server runs.
    """

    def __init__(self, max_requests: int, max_tokens: Callable[[], int]) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._rings: dict[str, _Ring] = {}
        self.resets: list[float] = []
        """Times at which the whole prefix cache was forgotten; the latest ones."""

    def add(self, record: Record, prompts: Sequence[Sequence[int]]) -> None:
        """Remember a request that begins, and its prompts."""
        if not self._max_requests:
            return
        record.prompts = [array("i", prompt).tobytes() for prompt in prompts]
        record.on_end = self._settle
        ring = self._rings.setdefault(record.tenant, _Ring())
        ring.put(record)
        self._trim(ring)

    def find(self, tenant: str, request_id: str) -> Record | None:
        """One of the tenant's own requests, by its id."""
        ring = self._rings.get(tenant)
        return None if ring is None else ring.records.get(request_id)

    def of(self, tenant: str) -> list[Record]:
        """What is remembered of a tenant, latest first."""
        ring = self._rings.get(tenant)
        return [] if ring is None else list(reversed(ring.records.values()))

    def num_tokens(self, tenant: str) -> int:
        """Tokens that are remembered of a tenant, but for the outputs of what still runs."""
        ring = self._rings.get(tenant)
        return 0 if ring is None else ring.num_tokens

    def note_reset(self, now_s: float) -> None:
        """The prefix cache forgot everything that no running request held."""
        self.resets = [*self.resets[-15:], now_s]

    def _settle(self, record: Record) -> None:
        """Count the outputs of a request that ended; one that never ran is of no use."""
        ring = self._rings[record.tenant]
        if record.finish == "refused":
            ring.drop(record)
            return
        ring.put(record)
        self._trim(ring)

    def _trim(self, ring: _Ring) -> None:
        max_tokens = self._max_tokens()
        while len(ring.records) > self._max_requests or ring.num_tokens > max_tokens:
            ring.drop(next(iter(ring.records.values())))
