"""Token ids for requests that a trace knows by the names of their blocks only.

Equal names in one scope become equal tokens, different ones share no token at all. What no name
covers (the end of a prompt, an answer) is the request's own, except inside a session: where the
next turn begins with all named blocks of this one, its tokens are taken, since it repeats this
turn's prompt and answer before it says something new.
"""

from kokuban.simulate.trace import Trace, TraceRequest

_OWN_TOKENS = 1 << 24
"""Token ids set aside for one request: more than any prompt and answer have."""


class Synthesizer:
    """Tokens of the requests of one trace. A function of the trace alone."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._bases: dict[tuple[str, int], int] = {}
        for request in trace.requests:
            for block in request.block_ids:
                self._bases.setdefault((request.scope, block), len(self._bases))
        self._next = _next_turns(trace)

    def prompt(self, index: int) -> tuple[int, ...]:
        """Token ids of the prompt of request `index`."""
        return tuple(self._tokens(index, 0, self._trace.requests[index].prompt_tokens))

    def output_token(self, index: int, place: int) -> int:
        """Token `place`, from 0, of the answer to request `index`."""
        position = self._trace.requests[index].prompt_tokens + place
        [token] = self._tokens(index, position, position + 1)
        return token

    def _tokens(self, index: int, start: int, stop: int) -> list[int]:
        """Tokens `start` up to `stop` of the request's sequence, prompt and answer."""
        tokens: list[int] = []
        while start < stop:
            request = self._trace.requests[index]
            named = min(stop, len(request.block_ids) * self._trace.block_tokens)
            if start < named:
                tokens += self._named(request, start, named)
                start = named
            elif (following := self._next[index]) is not None:
                index = following
            else:
                own = (index + 1) * _OWN_TOKENS
                tokens += [-token for token in range(own + start, own + stop)]
                start = stop
        return tokens

    def _named(self, request: TraceRequest, start: int, stop: int) -> list[int]:
        size = self._trace.block_tokens
        tokens: list[int] = []
        for place in range(start // size, -(-stop // size)):
            base = self._bases[request.scope, request.block_ids[place]] * size - place * size
            tokens += range(base + max(start, place * size), base + min(stop, (place + 1) * size))
        return tokens


def _next_turns(trace: Trace) -> list[int | None]:
    """For each request the next turn of its session, if that one begins with all its blocks."""
    following: list[int | None] = [None] * len(trace.requests)
    last: dict[str, int] = {}
    for index, request in enumerate(trace.requests):
        if not request.session:
            continue
        before = last.get(request.session)
        if before is not None and _goes_on(trace.requests[before], request):
            following[before] = index
        last[request.session] = index
    return following


def _goes_on(before: TraceRequest, after: TraceRequest) -> bool:
    named = len(before.block_ids)
    return named > 0 and after.block_ids[:named] == before.block_ids
