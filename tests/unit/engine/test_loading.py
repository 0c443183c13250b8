"""Weights are packed beside what else a start does; whoever leaves early leaves nothing running."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kokuban.core.config import RuntimeConfig
from kokuban.core.errors import ModelError
from kokuban.engine import loading
from kokuban.engine.loading import SWITCH_S, Compute, Loading


def begin(monkeypatch: pytest.MonkeyPatch, pack: Any, on_load: Any = None) -> Loading:
    """A loading whose packing is this function of its `progress`."""
    monkeypatch.setattr(loading, "load_weights", lambda *_, progress, **__: pack(progress))
    source: Any = SimpleNamespace(config=None)
    found = Loading("m", source, source, Compute(1, None, 0, "scalar"))
    found.start(RuntimeConfig(), on_load)
    return found


def test_the_weights_are_packed_on_another_thread_while_its_maker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end, threads, told = threading.Event(), [], []

    def pack(progress: Any) -> str:
        threads.append(threading.current_thread())
        progress(1, 2)
        assert may_end.wait(5)
        return "weights"

    usual = sys.getswitchinterval()
    with begin(monkeypatch, pack, lambda *amounts: told.append(amounts)) as found:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        may_end.set()
        assert found.weights() == "weights"
        assert sys.getswitchinterval() == usual

    assert threads != [threading.current_thread()]
    assert not threads[0].is_alive()
    assert told == [(1, 2)]


def test_what_goes_wrong_is_told_to_who_waits_for_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pack(progress: Any) -> str:
        raise ModelError("a tensor is missing")

    with begin(monkeypatch, pack) as found, pytest.raises(ModelError, match="a tensor is missing"):
        found.weights()


def test_who_leaves_early_waits_for_one_matrix_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_go_on, packed = threading.Event(), threading.Event(), []

    def pack(progress: Any) -> str:
        for matrix in range(3):
            begun.set()
            assert may_go_on.wait(5)
            packed.append(matrix)
            progress(matrix, 3)
        return "weights"

    usual = sys.getswitchinterval()
    found = begin(monkeypatch, pack)
    assert begun.wait(5)
    found._given_up = True  # what `close` does before it waits
    may_go_on.set()
    found.close()

    assert packed == [0]
    assert sys.getswitchinterval() == usual


def test_an_interrupt_while_waiting_gives_up_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, packed = threading.Event(), []

    def pack(progress: Any) -> str:
        for matrix in range(1000):
            begun.set()
            packed.append(matrix)
            progress(matrix, 1000)
            may_go_on.wait(5)
        return "weights"

    may_go_on = threading.Event()
    found = begin(monkeypatch, pack)
    assert begun.wait(5)

    def interrupted() -> str:
        may_go_on.set()
        raise KeyboardInterrupt

    pending: Any = SimpleNamespace(result=interrupted, set_exception=lambda error: None)
    found._weights = pending
    with pytest.raises(KeyboardInterrupt):
        found.weights()

    assert len(packed) < 1000


def test_two_models_that_load_at_once_leave_the_switch_interval_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = sys.getswitchinterval()
    first, second = (begin(monkeypatch, lambda progress: "weights") for _ in range(2))
    first.weights()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    second.weights()
    assert sys.getswitchinterval() == usual
