"""What the options of `kokuban bench serve` may be, asked before anything is sent."""

import math
from collections.abc import Mapping
from typing import Any

from kokuban.core.errors import ConfigError

MAX_SECONDS = 30 * 24 * 3600
MIN_TIMEOUT_S = 0.001
MIN_RATE, MAX_RATE = 1e-6, 1e6


def check_options(given: Mapping[str, Any]) -> None:
    """Each option by itself; lengths, addresses and names are checked by who reads them.

    Raises:
        ConfigError: one of them cannot work.
    """
    from kokuban.bench.connection import check_api_key
    from kokuban.bench.protocol import check_encodable

    check_api_key(given["api_key"])
    check_encodable("--model", given["model"])
    _check_rates(given["rate"], given["speed"])
    _check_counts(given)
    for name, least in (("duration", 0), ("timeout", MIN_TIMEOUT_S)):
        if not least <= given[name] <= MAX_SECONDS:  # nan is refused too.
            raise ConfigError(
                f"--{name} {given[name]:g} is not between {least} and {MAX_SECONDS:,} seconds "
                f"(30 days)"
            )
    if not 0 <= given["temperature"] < math.inf:
        raise ConfigError(
            f"--temperature {given['temperature']:g} is no number from 0 up; 0 always takes the "
            f"most likely token"
        )
    for name in ("slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms"):
        limit = given[name]
        if limit is not None and not 0 < limit < math.inf:
            raise ConfigError(
                f"--{name.replace('_', '-')} {limit:g} is no number of milliseconds above 0; leave "
                f"it out for no limit"
            )


def _check_rates(rate: float, speed: float) -> None:
    if not rate > 0:
        raise ConfigError(f"--rate {rate:g} is not above 0")
    if not MIN_RATE <= rate <= MAX_RATE and rate != math.inf:
        raise ConfigError(
            f"--rate {rate:g} is not between {MIN_RATE:g} and {MAX_RATE:g} requests a second; inf "
            f"sends all at once"
        )
    if not speed > 0:
        raise ConfigError(f"--speed {speed:g} is not above 0")


def _check_counts(given: Mapping[str, Any]) -> None:
    from kokuban.bench.arrivals import MAX_REQUESTS

    for name in ("requests", "warmup", "burst_size", "max_concurrency"):
        if given[name] > MAX_REQUESTS:
            raise ConfigError(
                f"--{name.replace('_', '-')} {given[name]} is above {MAX_REQUESTS:,}; give fewer"
            )
