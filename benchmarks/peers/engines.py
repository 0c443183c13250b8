"""Which engines there are, how each is started, and the process that holds it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from worker import Case, Times

HERE = Path(__file__).resolve().parent
TICKS_S = os.sysconf("SC_CLK_TCK")
SETTLE_S = 0.2
OURS = "kokuban"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Where the peers were installed; None where one was not."""

    llama_cpp_python: Path | None = None
    ik_python: Path | None = None
    openvino_python: Path | None = None
    openvino_ir: tuple[Path, ...] = ()
    vllm_python: Path | None = None
    vllm_dir: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine is started, and the rows that it can run."""

    name: str
    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    """NAME=value, set for its process."""

    least_batch: int = 1
    most_batch: int = 64


def engines(model: Path, threads: int, peers: Peers) -> tuple[list[Engine], dict[str, str]]:
    """Those that can run, ours first; and of the others, by name, why not."""
    found = [
        _engine(OURS, Path(sys.executable), "worker_kokuban.py", model, threads, "bf16"),
        _engine(
            f"{OURS} KV int8", Path(sys.executable), "worker_kokuban.py", model, threads, "int8",
            least_batch=8,
        ),
    ]  # fmt: skip
    missing: dict[str, str] = {}
    for name, option, engines_of in (
        ("llama.cpp", "--llama-cpp-python", _llama_cpp),
        ("ik_llama.cpp", "--ik-python", _ik_llama_cpp),
        ("OpenVINO GenAI", "--openvino-python and --openvino-ir", _openvino),
        ("vLLM", "--vllm-python and --vllm-dir", _vllm),
    ):
        more = list(engines_of(model, threads, peers))
        found += more
        if not more:
            missing[name] = f"not measured: {option} not given"
        for engine in more:
            for path in (engine.command[0], engine.command[2]):
                if not Path(path).exists():
                    missing[engine.name] = f"not measured: {path} does not exist"
    return [engine for engine in found if engine.name not in missing], missing


def _llama_cpp(model: Path, threads: int, peers: Peers) -> Iterator[Engine]:
    if peers.llama_cpp_python:
        yield _engine("llama.cpp", peers.llama_cpp_python, "worker_llama_cpp.py", model, threads)


def _ik_llama_cpp(model: Path, threads: int, peers: Peers) -> Iterator[Engine]:
    """Plain, and with its weights repacked at load: now the one, now the other is faster."""
    if peers.ik_python:
        for name, *options in (("ik_llama.cpp",), ("ik_llama.cpp repack", "repack")):
            yield _engine(
                name, peers.ik_python, "worker_llama_cpp.py", model, threads, *options,
                most_batch=1,
            )  # fmt: skip


def _openvino(model: Path, threads: int, peers: Peers) -> Iterator[Engine]:
    if peers.openvino_python:
        for directory in peers.openvino_ir:
            name = f"OpenVINO {directory.name.rpartition('-')[2]}"
            yield _engine(name, peers.openvino_python, "worker_openvino.py", directory, threads)


def _vllm(model: Path, threads: int, peers: Peers) -> Iterator[Engine]:
    if peers.vllm_python and peers.vllm_dir:
        engine = _engine("vLLM", peers.vllm_python, "worker_vllm.py", peers.vllm_dir, threads)
        environment = (
            "HF_HUB_OFFLINE=1",
            "VLLM_CPU_KVCACHE_SPACE=2",
            f"VLLM_CPU_OMP_THREADS_BIND=0-{threads - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU=0",
            "VLLM_ENABLE_V1_MULTIPROCESSING=0",
            "VLLM_LOGGING_LEVEL=ERROR",
        )
        yield replace(engine, environment=environment)


def _engine(
    name: str, python: Path, worker: str, model: Path, threads: int, *more: str,
    least_batch: int = 1, most_batch: int = 64,
) -> Engine:  # fmt: skip
    command = (str(python), str(HERE / worker), str(model), str(threads), *more)
    return Engine(name=name, command=command, least_batch=least_batch, most_batch=most_batch)


class EngineFailed(Exception):
    """The worker ended; the message has the end of what it complained about."""


class Worker:
    """A process that has loaded its model and waits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the worker)
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            ["env", *engine.environment, *engine.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        self.facts: dict[str, Any] = self._answer()
        self.load_s = time.perf_counter() - begin

    @property
    def name(self) -> str:
        return self.engine.name

    def run(self, case: Case) -> Times:
        """Raises `EngineFailed`."""
        self._in.write(json.dumps(asdict(case)) + "\n")
        self._in.flush()
        return Times(**self._answer())

    def cpu_s(self) -> float:
        """Processor time that all threads of the process have taken."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_S

    def close(self) -> None:
        """End the process, in the middle of its work if it must be, and wait for it."""
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        self._out.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        """The next line of JSON; whatever else a library prints is passed over."""
        while line := self._out.readline():
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self._process.wait()
        self._errors.seek(0)
        tail = " / ".join(self._errors.read().strip().splitlines()[-3:])
        raise EngineFailed(f"ended with status {self._process.returncode}: {tail}")


class Watch:
    """What else took CPUs while an engine ran: the others, whose turn it was not, and strangers."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._idle: dict[str, tuple[float, float]] = {}
        self._seconds = self._strangers_s = 0.0

    @property
    def strangers(self) -> float:
        """CPUs that other programs kept busy meanwhile, on average: 0 on a quiet machine."""
        return self._strangers_s / self._seconds if self._seconds else 0.0

    @property
    def idle(self) -> dict[str, float]:
        """By engine: the share of a CPU that it took while another one ran."""
        return {name: cpu_s / seconds for name, (cpu_s, seconds) in self._idle.items()}

    def run(self, busy: Worker, case: Case) -> Times:
        """Run a case on one of them, when the one before has put down its work."""
        time.sleep(SETTLE_S)
        before, all_before, begin = self._taken(), busy_cpu_s(), time.perf_counter()
        times = busy.run(case)
        seconds = time.perf_counter() - begin
        taken = {name: after_s - before[name] for name, after_s in self._taken().items()}
        self._seconds += seconds
        self._strangers_s += max(0.0, busy_cpu_s() - all_before - sum(taken.values()))
        for name, cpu_s in taken.items():
            if name != busy.name:
                cpu_before_s, seconds_before = self._idle.get(name, (0.0, 0.0))
                self._idle[name] = cpu_before_s + cpu_s, seconds_before + seconds
        return times

    def _taken(self) -> dict[str, float]:
        return {worker.name: worker.cpu_s() for worker in self._workers}


def busy_cpu_s() -> float:
    """Processor time that the whole machine has spent on anything but waiting."""
    user, nice, system, _idle, _iowait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / TICKS_S
