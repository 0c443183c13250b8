"""Compiles grammars beside the engine: off the event loop, off the engine thread, within limits.

What is compiled is kept for a while, so that a client who asks again does not wait, and for as long
as anybody holds it, so that the engine thread finds it when the request's turn comes. What could
not be compiled is remembered too: a hostile grammar costs its time once.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol
from weakref import WeakValueDictionary

from kokuban.core.errors import Overloaded, RequestError, ShuttingDown
from kokuban.sampling.grammar import CompiledGrammar

LIMIT_S = 5.0
"""How long a request waits for its grammar to be compiled."""

MAX_KEPT = 128
"""Grammars that are kept although nobody uses them, the newest ones."""

MAX_WAITING = 32
"""Grammars that are compiled or wait for it."""

THREADS = 2


class Compiler(Protocol):
    """See `sampling.grammar.GrammarCompiler`."""

    def compile(self, source: str) -> CompiledGrammar: ...


class GrammarStore:
    """Owns the threads that compile. Every method is safe on any thread."""

    def __init__(self, compiler: Compiler, *, limit_s: float = LIMIT_S) -> None:
        self._compiler = compiler
        self._limit_s = limit_s
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._lock = threading.Lock()
        # All of these under the lock.
        self._alive: WeakValueDictionary[str, CompiledGrammar] = WeakValueDictionary()
        self._kept: OrderedDict[str, CompiledGrammar | RequestError] = OrderedDict()
        self._pending: dict[str, Future[CompiledGrammar]] = {}

    async def compile(self, source: str) -> CompiledGrammar:
        """What a grammar becomes. Hold on to it while a request that asks for it may run.

        Raises:
            RequestError: it cannot be built, or not in time.
            Overloaded: too many others are being built.
        """
        found = self._look_up(source)
        if not isinstance(found, Future):
            return found
        try:
            return await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(found)), timeout=self._limit_s
            )
        except TimeoutError:
            if not found.running() and not found.done():
                raise Overloaded("too many grammars are being compiled; try again later") from None
            error = RequestError(
                f"the grammar is not compiled after {self._limit_s:g} s; make it smaller",
                param="grammar",
            )
            self._keep(source, error)
            raise error from None

    async def compile_all(self, sources: Iterable[str]) -> list[CompiledGrammar]:
        """`compile` for each, one after the other."""
        return [await self.compile(source) for source in sources]

    def find(self, source: str) -> CompiledGrammar:
        """What was compiled. Compiles now what nobody holds any more."""
        with self._lock:
            found = self._alive.get(source)
        return self._compiler.compile(source) if found is None else found

    def close(self) -> None:
        """Compile nothing any more; what runs ends by itself."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _look_up(self, source: str) -> CompiledGrammar | Future[CompiledGrammar]:
        with self._lock:
            kept = self._kept.get(source)
            if isinstance(kept, RequestError):
                raise RequestError(str(kept), param=kept.param)
            if kept is not None:
                self._kept.move_to_end(source)
                return kept
            found = self._alive.get(source) or self._pending.get(source)
            if found is None:
                found = self._begin(source)
            return found

    def _begin(self, source: str) -> Future[CompiledGrammar]:
        if self._closed:
            raise ShuttingDown("the engine is shutting down; try another server")
        if len(self._pending) >= MAX_WAITING:
            raise Overloaded(
                f"{len(self._pending)} grammars are being compiled; the limit is {MAX_WAITING}: "
                f"try again later"
            )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kokuban-grammar")
        pending = self._pending[source] = self._threads.submit(self._work, source)
        return pending

    def _work(self, source: str) -> CompiledGrammar:
        """In a worker thread."""
        try:
            compiled = self._compiler.compile(source)
        except RequestError as error:
            self._keep(source, error)
            raise
        else:
            self._keep(source, compiled)
            return compiled
        finally:
            with self._lock:
                self._pending.pop(source, None)

    def _keep(self, source: str, outcome: CompiledGrammar | RequestError) -> None:
        with self._lock:
            self._kept[source] = outcome
            self._kept.move_to_end(source)
            if isinstance(outcome, CompiledGrammar):
                self._alive[source] = outcome
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
