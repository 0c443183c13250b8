"""How much of what a request holds is empty while it decodes, whatever the load: in closed form.

Each request counts once for each token that it generates, with the tokens that it then has, prompt
included. No queue, no step time and no other request enters, so that the share is a property of the
lengths in the trace and of the way that slots are handed out.
"""

from collections.abc import Callable

from kokuban.simulate.trace import Trace, TraceRequest


def pages_waste(trace: Trace, block_size: int) -> float:
    """Share of the slots in the pages of decoding requests that hold no token, from 0 to 1."""
    tokens = slots = 0
    for request in trace.requests:
        first, last = _span(request)
        tokens += _sum_up_to(last) - _sum_up_to(first - 1)
        slots += _slots_up_to(last, block_size) - _slots_up_to(first - 1, block_size)
    return 1 - tokens / slots


def reservation_waste(trace: Trace, reserved: Callable[[TraceRequest], int]) -> float:
    """The same where each request has all its slots from the beginning.

    Args:
        reserved: slots of a request; those that are too few for it are left out.
    """
    tokens = slots = 0
    for request in trace.requests:
        first, last = _span(request)
        if reserved(request) >= last - 1:
            tokens += _sum_up_to(last) - _sum_up_to(first - 1)
            slots += reserved(request) * request.output_tokens
    return 1 - tokens / slots if slots else 0.0


def _span(request: TraceRequest) -> tuple[int, int]:
    """Tokens that the request has with its first and with its last generated token."""
    return request.prompt_tokens + 1, request.prompt_tokens + request.output_tokens


def _sum_up_to(count: int) -> int:
    """1 + 2 + … + count."""
    return count * (count + 1) // 2


def _slots_up_to(count: int, block_size: int) -> int:
    """Slots in the pages of 1 token, of 2 tokens, … of `count` tokens, added up."""
    whole, rest = divmod(count, block_size)
    return block_size * (block_size * _sum_up_to(whole) + rest * (whole + 1))
