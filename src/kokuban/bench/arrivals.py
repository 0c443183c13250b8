"""When requests arrive, whatever becomes of those before them: an open loop."""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Literal, get_args

from kokuban.core.errors import ConfigError

Process = Literal["poisson", "constant", "burst"]


def check_process(name: str) -> Process:
    """Raises `ConfigError` for a process that does not exist."""
    for known in get_args(Process):
        if name == known:
            found: Process = known
            return found
    raise ConfigError(f"--arrival {name} is none of {', '.join(get_args(Process))}")


def arrival_times(
    process: Process, rate: float, *, burst_size: int, draw: random.Random
) -> Iterator[float]:
    """Seconds from the start, ascending, without end.

    Args:
        process: poisson: gaps are exponential, the first included, so that times have no memory;
            constant: one each 1 / rate, from 0; burst: `burst_size` at once each
            burst_size / rate, from 0.
        rate: requests a second on average; infinite: all at once.
    """
    if math.isinf(rate):
        yield from itertools.repeat(0.0)
    if process == "poisson":
        now_s = 0.0
        while True:
            now_s += draw.expovariate(rate)
            yield now_s
    at_once = burst_size if process == "burst" else 1
    for index in itertools.count():
        yield index // at_once * at_once / rate


def schedule(times: Iterator[float], *, num_requests: int, duration_s: float) -> list[float]:
    """The first arrivals: `num_requests` of them, those before `duration_s`, or what ends first.

    Args:
        num_requests: 0: any number.
        duration_s: 0: any time.

    Raises:
        ConfigError: both are 0, or infinitely many would arrive within the duration.
    """
    if not num_requests and not duration_s:
        raise ConfigError("say how long: give --requests or --duration")
    found: list[float] = []
    for time_s in times:
        if (num_requests and len(found) == num_requests) or (duration_s and time_s >= duration_s):
            break
        found.append(time_s)
        if not num_requests and len(found) > MAX_REQUESTS:
            raise ConfigError(
                f"more than {MAX_REQUESTS:,} requests arrive within --duration {duration_s:g}; "
                f"lower --rate, or give --requests"
            )
    return found


MAX_REQUESTS = 1_000_000
