"""How long a request may take: what the client asks for, within what the operator allows."""

import math

from starlette.requests import Request

from kokuban.core.errors import RequestError

HEADER = "X-Request-Timeout"


def timeout_of(request: Request, most_s: float) -> float | None:
    """Seconds for the whole answer, waiting included; None: no limit.

    Args:
        most_s: the operator's limit; 0: none.

    Raises:
        RequestError: the header is no number of seconds above 0.
    """
    asked = request.headers.get(HEADER)
    if asked is None:
        return most_s or None
    try:
        asked_s = float(asked)
    except ValueError:
        asked_s = math.nan
    if not 0 < asked_s < math.inf:
        raise RequestError(
            f"the header {HEADER} is {asked[:32]!r}; it holds seconds, such as 30 or 0.5",
            param=HEADER,
        )
    return min(asked_s, most_s) if most_s else asked_s
