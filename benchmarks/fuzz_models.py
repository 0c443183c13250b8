"""Does any model file, however wrong, do more than be refused?

Run:    python tools/sanitize.py address -- python -m benchmarks.fuzz_models [--files 10000]
Reads:  files by what was done to them and how it ended. Exit code 1 and the file's seed where the
        process died (a sanitizer's report is shown), an error was none of ours, or time or memory
        went beyond the bounds. `--file SEED` runs one and shows it.

Small good files of every architecture and storage type are spoiled (`fuzz_files`), described as
`kokuban inspect` does, loaded as `kokuban serve` does, and asked for a few tokens. Half are GGUF
files, half directories of safetensors. Files are loaded one after another in a process that is
started again when it dies. Without the sanitizers the same is tried, and less is seen.
"""

import argparse
import json
import logging
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_files import make_bases, spoil

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import KokubanError
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.llm import LLM
from kokuban.weights.inspect import describe
from kokuban.weights.source import open_source

CPU_S = 20.0
"""Of one file. Sanitizers cost about three times."""

WALL_S = 300.0
GROWTH_MIB = 600
"""What one file may add to the largest size that the process has had."""

SCHEDULER = SchedulerConfig(token_budget=32, max_running_requests=2)
RUNTIME = RuntimeConfig(kv_memory_bytes=8 * 2**20, threads=2)
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)


@dataclass(slots=True)
class Outcome:
    """What came of one file."""

    seed: int
    kind: str
    ended: str
    """"runs", or the name of the error."""

    text: str = ""
    is_fault: bool = False
    cpu_s: float = 0.0
    peak_mib: float = 0.0


def try_file(seed: int, bases: list[Path], directory: Path) -> Outcome:
    """Spoil a file and load it."""
    kind, path = spoil(seed, bases, directory)
    begin_s, before_mib = time.process_time(), _peak_mib()
    outcome = Outcome(seed, kind, "runs")
    try:
        describe(open_source(path))
        with LLM(path, scheduler=SCHEDULER, runtime=RUNTIME) as llm:
            llm.generate([[97, 98, 99]], PARAMS)
            llm.generate("ab é", PARAMS)
    except KokubanError as error:
        outcome.ended, outcome.text = type(error).__name__, str(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told with its file
        outcome.ended, outcome.is_fault = type(error).__name__, True
        outcome.text = traceback.format_exc(limit=-6)
    outcome.cpu_s = round(time.process_time() - begin_s, 2)
    outcome.peak_mib = _peak_mib()
    if outcome.cpu_s > CPU_S or outcome.peak_mib - before_mib > GROWTH_MIB:
        outcome.is_fault = True
        outcome.text += f"\ntook {outcome.cpu_s} s and {outcome.peak_mib - before_mib:.0f} MiB"
    return outcome


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def work(bases_at: Path, seeds: range) -> None:
    """The child: one line of JSON for each file."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    bases = find_bases(bases_at)
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            outcome = try_file(seed, bases, Path(folder))
            text = json.dumps([getattr(outcome, name) for name in Outcome.__slots__])
            print(text, flush=True)


def find_bases(directory: Path) -> list[Path]:
    return [*sorted((directory / "gguf").iterdir()), *sorted((directory / "hf").iterdir())]


@dataclass(slots=True)
class Report:
    """What a run found."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[Outcome] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    peak_mib: float = 0.0
    num_files: int = 0
    seconds: float = 0.0

    def take(self, outcome: Outcome) -> None:
        self.num_files += 1
        self.outcomes[outcome.kind, outcome.ended] += 1
        self.slowest = max(self.slowest, (outcome.cpu_s, outcome.seed))
        self.peak_mib = max(self.peak_mib, outcome.peak_mib)
        if outcome.is_fault:
            self.faults.append(outcome)
            text = f"FAULT file {outcome.seed} ({outcome.kind}): {outcome.ended}\n{outcome.text}"
            print(text, file=sys.stderr, flush=True)


def run(num_files: int, seed: int) -> Report:
    """Load the files of `num_files` seeds in children, one after another."""
    report = Report()
    start_s = time.perf_counter()
    seeds = range(seed * 10**9, seed * 10**9 + num_files)
    with tempfile.TemporaryDirectory() as folder:
        make_bases(Path(folder))
        while seeds:
            seeds = _run_child(Path(folder), seeds, report)
    report.seconds = time.perf_counter() - start_s
    return report


def _run_child(bases_at: Path, seeds: range, report: Report) -> range:
    """Load files until all are done or the child dies; returns the seeds that are left."""
    command = [sys.executable, "-m", "benchmarks.fuzz_models", "--child", str(bases_at)]
    command += ["--files", str(len(seeds)), "--seed", str(seeds.start)]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert child.stdout is not None
        while seeds:
            is_ready, _, _ = select.select([child.stdout], [], [], WALL_S)
            line = child.stdout.readline() if is_ready else ""
            if not line:
                break
            report.take(Outcome(*json.loads(line)))
            seeds = seeds[1:]
        if seeds:
            child.kill()
        code = child.wait()
        errors.seek(0)
        said = errors.read()[-6000:]
    if seeds:
        why = f"exit {code}" if code != -9 else f"nothing within {WALL_S:g} s"
        report.take(Outcome(seeds.start, "child", why, said, is_fault=True))
        seeds = seeds[1:]
    return seeds


def show(report: Report) -> None:
    """Print what a run found."""
    rows: dict[str, Counter[str]] = {}
    for (kind, ended), count in report.outcomes.items():
        rows.setdefault(kind, Counter())[ended] += count
    for kind, ends in sorted(rows.items()):
        told = "  ".join(f"{end}: {count:,}" for end, count in sorted(ends.items()))
        print(f"{kind:20} {told}")
    print(
        f"{report.num_files:,} files in {report.seconds:.0f} s; slowest {report.slowest[0]} s of "
        f"CPU (file {report.slowest[1]}); most memory {report.peak_mib:.0f} MiB"
    )
    print(f"{len(report.faults)} faults")


def show_file(seed: int) -> None:
    """Run one file in this process and print what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        bases = make_bases(Path(folder))
        outcome: Any = try_file(seed, bases, Path(folder))
    for name in Outcome.__slots__:
        print(f"{name}: {getattr(outcome, name)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", type=int, help="run the file of this seed and show it")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        work(arguments.child, range(arguments.seed, arguments.seed + arguments.files))
    elif arguments.file is not None:
        show_file(arguments.file)
    else:
        report = run(arguments.files, arguments.seed)
        show(report)
        sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
