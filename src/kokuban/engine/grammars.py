"""Compiles grammars beside the engine: off the event loop, off the engine thread, within limits.

What is compiled is kept for a while, so that a client who asks again does not wait, and for as long
as anybody holds it, so that the engine thread finds it when the request's turn comes. What could
not be compiled is remembered too: a hostile grammar costs its time once.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

from kokuban.core.errors import (
    KokubanError,
    Overloaded,
    RequestError,
    ShuttingDown,
    StepFailed,
)
from kokuban.core.parameters import GRAMMAR_LIMIT_S
from kokuban.sampling.grammar import CompiledGrammar

MAX_KEPT = 32
"""Grammars that are kept although nobody uses them, the newest ones. Most hold 0.1 MiB, patterns
with many repetitions some 8 (`sampling.grammar.LEXER_FUEL`); to compile one takes 1 to 15 ms."""

MAX_WAITING = 256
"""Grammars that are compiled or wait for it."""

THREADS = 2

Outcome = CompiledGrammar | KokubanError
Ready = Callable[[Outcome], None]

_log = logging.getLogger(__name__)


class Compiler(Protocol):
    """See `sampling.grammar.GrammarCompiler`."""

    def compile(self, source: str) -> CompiledGrammar: ...


@dataclass(slots=True, eq=False)
class Pending:
    """A grammar that is not compiled yet, and who waits for it."""

    source: str
    waiting: list[Ready] = field(default_factory=list)
    work: Future[None] | None = None
    timer: threading.Timer | None = None


class GrammarStore:
    """Owns the threads that compile. Every method is safe on any thread."""

    def __init__(self, compiler: Compiler, *, limit_s: float = GRAMMAR_LIMIT_S) -> None:
        self._compiler = compiler
        self._limit_s = limit_s
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._lock = threading.Lock()
        # All of these under the lock.
        self._alive: WeakValueDictionary[str, CompiledGrammar] = WeakValueDictionary()
        self._kept: OrderedDict[str, Outcome] = OrderedDict()
        self._pending: dict[str, Pending] = {}

    def prepare(self, source: str, ready: Ready) -> None:
        """Compile a grammar, unless that was done.

        Args:
            ready: called once, here or on another thread, with what was compiled or why nothing
                was. Hold on to it while a request that asks for it may run.
        """
        with self._lock:
            outcome = self._known(source) or self._wait(source, ready)
        if outcome is not None:
            ready(outcome)

    def find(self, source: str) -> CompiledGrammar:
        """What was compiled. Compiles now what nobody holds any more."""
        with self._lock:
            found = self._alive.get(source)
        return self._compiler.compile(source) if found is None else found

    def close(self) -> None:
        """Compile nothing any more; what is being compiled ends by itself."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
            pending = list(self._pending.values())
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        for each in pending:
            self._end(each, _shut_down(), keep=False)

    def _known(self, source: str) -> Outcome | None:
        outcome = self._kept.get(source)
        if outcome is not None:
            self._kept.move_to_end(source)
            return _copy(outcome)
        return self._alive.get(source)

    def _wait(self, source: str, ready: Ready) -> KokubanError | None:
        """Have it compiled; returns why not."""
        pending = self._pending.get(source)
        if pending is None:
            if self._closed:
                return _shut_down()
            if len(self._pending) >= MAX_WAITING:
                return Overloaded(
                    f"{len(self._pending)} grammars wait to be compiled, and the limit is "
                    f"{MAX_WAITING}; try again later"
                )
            pending = self._begin(source)
        pending.waiting.append(ready)
        return None

    def _begin(self, source: str) -> Pending:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kokuban-grammar")
        pending = self._pending[source] = Pending(source)
        pending.timer = threading.Timer(self._limit_s, self._expire, [pending])
        pending.timer.daemon = True
        pending.timer.start()
        pending.work = self._threads.submit(self._work, pending)
        return pending

    def _work(self, pending: Pending) -> None:
        """In a worker thread."""
        outcome: Outcome
        try:
            outcome = self._compiler.compile(pending.source)
        except RequestError as error:
            outcome = error
        except Exception:  # noqa: BLE001 - whoever waits is told
            _log.exception("a grammar could not be compiled")
            outcome = StepFailed("the grammar could not be compiled; see the server's log")
        self._end(pending, outcome, keep=not isinstance(outcome, StepFailed))

    def _expire(self, pending: Pending) -> None:
        """In the timer's thread, when the time is over."""
        if pending.work is not None and pending.work.cancel():
            error: KokubanError = Overloaded("too many grammars are being compiled; try again")
            self._end(pending, error, keep=False)
            return
        error = RequestError(
            f"the grammar is not compiled after {self._limit_s:g} s; make it smaller",
            param="grammar",
        )
        self._end(pending, error, keep=True)

    def _end(self, pending: Pending, outcome: Outcome, *, keep: bool) -> None:
        """Tell who waits, if nobody has yet."""
        with self._lock:
            waiting, pending.waiting = pending.waiting, []
            is_first = self._pending.get(pending.source) is pending
            if is_first:
                del self._pending[pending.source]
            # What comes late is worth keeping too.
            if keep and (is_first or isinstance(outcome, CompiledGrammar)):
                self._keep(pending.source, outcome)
        if pending.timer is not None:
            pending.timer.cancel()
        for ready in waiting:
            ready(_copy(outcome))

    def _keep(self, source: str, outcome: Outcome) -> None:
        self._kept[source] = outcome
        self._kept.move_to_end(source)
        if isinstance(outcome, CompiledGrammar):
            self._alive[source] = outcome
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)


def _copy(outcome: Outcome) -> Outcome:
    """Errors are raised, and changed, by whoever gets one."""
    if isinstance(outcome, RequestError):
        return RequestError(str(outcome), param=outcome.param)
    return outcome


def _shut_down() -> ShuttingDown:
    return ShuttingDown("the engine is shutting down; try another server")
