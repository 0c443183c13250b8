"""How much each tenant may ask for: requests and tokens a minute, and requests at the same time.

Requests are paid before, tokens after: a request is taken while its tenant has tokens left, and
what it then uses may leave a debt, which later requests wait for. So no estimate of an answer's
length is needed, and no prompt is too long for a limit.

Lives on the event loop. An account costs a few hundred bytes, and there are as many as tenants.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from kokuban.observe.clock import Clock
from kokuban.server.errors import HttpError
from kokuban.server.keys import Caller
from kokuban.server.settings import ServerSettings

MINUTE_S = 60.0


class Bucket:
    """Fills at a steady rate up to what a minute brings.

    Args:
        per_minute: above 0.
    """

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._since_s = now_s

    def level(self, now_s: float) -> float:
        """What may be spent now; below 0: a debt."""
        gained = max(0.0, now_s - self._since_s) * self.per_minute / MINUTE_S
        self._since_s = max(now_s, self._since_s)
        self._level = min(self.per_minute, self._level + gained)
        return self._level

    def spend(self, amount: float, now_s: float) -> None:
        self._level = self.level(now_s) - amount

    def change(self, per_minute: float, now_s: float) -> None:
        """Fill at another rate from now on; what there is stays."""
        if per_minute != self.per_minute:
            self.level(now_s)
            self.per_minute = per_minute

    def wait_s(self, wanted: float, now_s: float) -> float:
        """Seconds until so much may be spent; 0: now."""
        missing = min(wanted, self.per_minute) - self.level(now_s)
        return max(0.0, missing * MINUTE_S / self.per_minute)


class Account:
    """What one tenant has left."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.num_active = 0

    def set_rates(self, requests: float, tokens: float) -> None:
        """Limits for a minute; 0: none."""
        now_s = self._clock.now()
        self._requests = _renewed(self._requests, requests, now_s)
        self._tokens = _renewed(self._tokens, tokens, now_s)

    def pay_request(self) -> None:
        """Raises `HttpError` when requests or tokens are used up; then nothing is paid."""
        now_s = self._clock.now()
        for what, bucket in (("tokens", self._tokens), ("requests", self._requests)):
            if bucket is not None and (wait_s := bucket.wait_s(1.0, now_s)) > 0:
                raise _used_up(what, bucket.per_minute, wait_s, self.headers())
        if self._requests is not None:
            self._requests.spend(1.0, now_s)

    def pay_tokens(self, count: int) -> None:
        """Tokens were read or written."""
        if self._tokens is not None:
            self._tokens.spend(count, self._clock.now())

    def headers(self) -> dict[str, str]:
        """What is left, under the names that OpenAI's clients know."""
        found = {}
        now_s = self._clock.now()
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = f"{bucket.per_minute:.0f}"
                left = max(0, math.floor(bucket.level(now_s)))
                found[f"x-ratelimit-remaining-{name}"] = str(left)
                reset_s = bucket.wait_s(bucket.per_minute, now_s)
                found[f"x-ratelimit-reset-{name}"] = duration(reset_s)
        return found


class Place:
    """One of the requests that a tenant may have at the same time. Taken when it is made.

    It is given back when the HTTP request ends, unless somebody keeps it: work may go on without a
    connection.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.is_kept = False
        account.num_active += 1

    def keep(self) -> Self:
        """Whoever calls this gives it back."""
        self.is_kept = True
        return self

    def leave(self) -> None:
        """Give it back, once."""
        self.account.num_active -= 1


class Quotas:
    """The accounts of all tenants.

    Args:
        settings: limits of who has none of its own.
    """

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def spend(self, caller: Caller) -> Iterator[Place]:
        """Count a request from its beginning to its answer's end, or longer: see `Place`.

        Raises:
            HttpError: 429; the request is not to be served.
        """
        account = self._account(caller)
        most = caller.max_concurrent
        if most is None:
            most = self._settings.max_concurrent
        if most and account.num_active >= most:
            raise HttpError(
                429,
                f"this key has {account.num_active} requests under way, and may have {most} at the "
                f"same time; wait for one of them",
                code="too_many_concurrent",
                headers={**account.headers(), "retry-after": "1"},
            )
        account.pay_request()
        place = Place(account)
        try:
            yield place
        finally:
            if not place.is_kept:
                place.leave()

    def _account(self, caller: Caller) -> Account:
        account = self._accounts.get(caller.tenant)
        if account is None:
            account = self._accounts[caller.tenant] = Account(self._clock)
        settings = self._settings
        account.set_rates(
            _own(caller.requests_per_minute, settings.requests_per_minute),
            _own(caller.tokens_per_minute, settings.tokens_per_minute),
        )
        return account


def duration(seconds: float) -> str:
    """A time as OpenAI's headers have it: "120ms", "1.5s", "6m0s"."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    if seconds < MINUTE_S:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"


def _used_up(what: str, per_minute: float, wait_s: float, headers: dict[str, str]) -> HttpError:
    seconds = max(1, math.ceil(wait_s))
    return HttpError(
        429,
        f"this key has used up its {per_minute:.0f} {what} a minute; try again in {seconds} s",
        code="rate_limit_exceeded",
        headers={**headers, "retry-after": str(seconds)},
    )


def _own(of_key: float | None, of_server: float) -> float:
    return of_server if of_key is None else of_key


def _renewed(bucket: Bucket | None, per_minute: float, now_s: float) -> Bucket | None:
    if not per_minute:
        return None
    if bucket is None:
        return Bucket(per_minute, now_s)
    bucket.change(per_minute, now_s)
    return bucket
