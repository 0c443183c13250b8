"""The first part of a start: a model is found, and its weights are packed on a thread of their own.

    with begin_loading("smollm2", runtime=runtime) as loading:
        ...                                     # imports, the tokenizer, whatever else takes time
        engine = build_engine(loading, ...)     # waits for the weights

Packing is native code that lets the interpreter go: what Python has to do for a start runs beside
it. So this module imports only what packing needs, and should be imported first.
"""

import sys
import threading
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from kokuban.core.config import RuntimeConfig
from kokuban.core.env import max_isa, omp_num_threads
from kokuban.kernels.native import isa_name, make_threads
from kokuban.models.registry import build_program
from kokuban.observe.machine import num_threads
from kokuban.program.fuse import take_rows_early
from kokuban.program.program import Program
from kokuban.runner.load import LoadedWeights, Progress, load_weights
from kokuban.weights.progress import Progress as PullProgress
from kokuban.weights.pull import resolve
from kokuban.weights.source import ModelSource, open_source

SWITCH_S = 2e-4
"""The interpreter's switch interval while weights are packed. The packing thread needs the
interpreter a moment between two matrices and would wait for each of them as long as this: with the
usual 5 ms a second for the 210 matrices of a small model, longer than packing takes."""


class Compute(NamedTuple):
    """What computes."""

    threads: int
    pool: Any
    """The native threads."""

    isa_cap: int
    isa: str


class _Switching:
    """The interpreter's switch interval: short while anything loads, afterwards as it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_loading = 0
        self._usual_s = 0.0

    def shorten(self) -> None:
        with self._lock:
            if self._num_loading == 0:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_s, SWITCH_S))
            self._num_loading += 1

    def restore(self) -> None:
        with self._lock:
            self._num_loading -= 1
            if self._num_loading == 0:
                sys.setswitchinterval(self._usual_s)


_switching = _Switching()


class Loading:
    """A model whose weights are being packed. Made by `begin_loading`; leave it with `close`.

    Args:
        name: what was asked for.
        source: the opened files.
        program: the model's.
        compute: threads that pack, and that run the model later.
        on_pull: for what else has to be fetched.
    """

    def __init__(
        self,
        name: str,
        source: ModelSource,
        program: Program,
        compute: Compute,
        on_pull: PullProgress | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.program = program
        self.compute = compute
        self.on_pull = on_pull
        self._weights: Future[LoadedWeights] = Future()
        self._given_up = False
        self._thread: threading.Thread | None = None

    def start(self, runtime: RuntimeConfig, on_load: Progress | None) -> None:
        """Begin to pack."""

        def progress(done_bytes: int, total_bytes: int) -> None:
            if self._given_up:
                raise CancelledError
            if on_load is not None:
                on_load(done_bytes, total_bytes)

        def pack() -> None:
            try:
                weights = load_weights(
                    self.source,
                    self.program,
                    self.source.config,
                    pool=self.compute.pool,
                    quantize=runtime.quantize,
                    progress=progress,
                )
            except BaseException as error:  # noqa: BLE001 - raised again by who waits for it
                self._weights.set_exception(error)
            else:
                self._weights.set_result(weights)

        _switching.shorten()
        self._thread = threading.Thread(target=pack, name="kokuban-load")
        self._thread.start()

    def weights(self) -> LoadedWeights:
        """Wait for the packed weights.

        Raises:
            ModelError: they cannot be packed; see `load_weights`.
        """
        try:
            return self._weights.result()
        except BaseException:  # the packing thread's error, or an interrupt of who waits
            self._given_up = True
            raise
        finally:
            self._end()

    def close(self) -> None:
        """Give up after the matrix that is being packed. Nothing happens once all are."""
        self._given_up = True
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            _switching.restore()


def begin_loading(
    model: str | Path,
    *,
    runtime: RuntimeConfig,
    on_load: Progress | None = None,
    on_pull: PullProgress | None = None,
) -> Loading:
    """Find and open a model, and start to pack its weights.

    Args:
        model: a GGUF file, a Hugging Face style directory, a hub id or a short name.
        on_load: told on the packing thread how far packing has come.
        on_pull: told how far downloading has come.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run with these settings.
    """
    source = open_source(resolve(str(model), progress=on_pull))
    program = take_rows_early(build_program(source.config))
    threads = num_threads(runtime.threads, omp_num_threads=omp_num_threads())
    compute = Compute(threads, make_threads(threads), max_isa(), isa_name(max_isa()))
    loading = Loading(str(model), source, program, compute, on_pull)
    loading.start(runtime, on_load)
    return loading
