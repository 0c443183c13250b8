"""Grammars are compiled beside the engine, within limits, and found when their turn comes."""

import gc
import threading
from collections.abc import Iterator

import pytest
from tests.fakes_text import EOT, byte_tokenizer

from kokuban.core.errors import Overloaded, RequestError, ShuttingDown
from kokuban.engine import grammars as module
from kokuban.engine.grammars import GrammarStore, Outcome
from kokuban.sampling.grammar import CompiledGrammar, GrammarCompiler
from kokuban.text.grammar import choice_grammar

REAL = GrammarCompiler(byte_tokenizer(), [EOT], 262)


class Compiler:
    """Compiles what it is told to, and notes it; holds those that begin with `slow`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go_on = threading.Event()
        self.busy = threading.Semaphore(0)

    def compile(self, source: str) -> CompiledGrammar:
        self.seen.append(source)
        if source.startswith("slow"):
            self.busy.release()
            assert self.go_on.wait(10)
        if source.startswith("bad"):
            raise RequestError("it is bad", param="grammar")
        if source.startswith("bug"):
            raise ValueError("a bug")
        return REAL.compile(choice_grammar(["a"]))


class Answer:
    """Waits for the one outcome."""

    def __init__(self, store: GrammarStore, source: str) -> None:
        self._came = threading.Event()
        self.outcomes: list[Outcome] = []
        store.prepare(source, self._take)

    def _take(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._came.set()

    def get(self) -> Outcome:
        assert self._came.wait(10)
        [outcome] = self.outcomes
        return outcome


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = Compiler()
    yield compiler
    compiler.go_on.set()


def test_a_grammar_is_compiled_once_for_all_who_ask(compiler: Compiler) -> None:
    store = GrammarStore(compiler)
    early, late = Answer(store, "slow"), Answer(store, "slow")
    compiler.go_on.set()

    assert early.get() is late.get()
    assert Answer(store, "slow").get() is early.get()
    assert compiler.seen == ["slow"]


def test_what_could_not_be_built_is_remembered_and_told_to_each(compiler: Compiler) -> None:
    store = GrammarStore(compiler)
    errors = [Answer(store, "bad").get() for _ in range(2)]

    assert [str(error) for error in errors] == ["it is bad"] * 2
    assert isinstance(errors[0], RequestError)
    assert errors[0] is not errors[1]
    assert compiler.seen == ["bad"]


def test_who_waits_too_long_is_refused_and_the_result_is_kept_when_it_comes(
    compiler: Compiler,
) -> None:
    """B50: an answer within the limit."""
    store = GrammarStore(compiler, limit_s=0.05)

    assert "not compiled after 0.05 s" in str(Answer(store, "slow").get())
    assert "not compiled after 0.05 s" in str(Answer(store, "slow").get())
    compiler.go_on.set()
    while not isinstance(store.find("slow"), CompiledGrammar):
        pass
    store.close()
    assert compiler.seen.count("slow") <= 2


def test_who_waits_behind_others_is_told_to_come_back(compiler: Compiler) -> None:
    store = GrammarStore(compiler, limit_s=0.1)
    for name in ("slow 1", "slow 2"):
        Answer(store, name)
        compiler.busy.acquire()

    assert isinstance(Answer(store, "third").get(), Overloaded)
    assert "third" not in compiler.seen


def test_the_queue_is_bounded(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    store = GrammarStore(compiler)
    Answer(store, "slow 1")
    Answer(store, "slow 2")

    assert "the limit is 2" in str(Answer(store, "slow 3").get())


def test_what_somebody_holds_is_found_although_many_came_after_it(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 1)
    store = GrammarStore(compiler)
    held = Answer(store, "a").get()
    Answer(store, "b").get()

    assert store.find("a") is held
    assert compiler.seen == ["a", "b"]


def test_what_nobody_holds_is_given_up_and_compiled_again(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 1)
    store = GrammarStore(compiler)
    Answer(store, "a").get()
    Answer(store, "b").get()
    gc.collect()

    assert isinstance(store.find("a"), CompiledGrammar)
    assert compiler.seen == ["a", "b", "a"]


def test_a_bug_fails_the_request_and_is_not_remembered(
    compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    store = GrammarStore(compiler)

    assert "see the server's log" in str(Answer(store, "bug").get())
    Answer(store, "bug").get()
    assert compiler.seen == ["bug", "bug"]
    assert "could not be compiled" in caplog.text


def test_closing_tells_who_waits(compiler: Compiler) -> None:
    store = GrammarStore(compiler)
    waiting = Answer(store, "slow")
    store.close()

    assert isinstance(waiting.get(), ShuttingDown)
    assert isinstance(Answer(store, "new").get(), ShuttingDown)
