"""All that is measured of a machine: what bounds kernels, and what they reach."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kokuban.bench.probes import NativeProbes, Peaks, measure_peaks
from kokuban.kernels.native import make_threads
from kokuban.plan.machine import MachineConstants
from kokuban.runner.measure import MachineBench
from kokuban.simulate.overhead import measure_overheads

FORMULAS = {
    "peaks": "the best of seven rounds in turns, by number of threads",
    "dram": "reading 128 MiB, or four times the last cache, with the widest loads",
    "last cache": "reading a quarter of it again and again",
    "fma": "float32 multiply-adds in registers, two operations each",
    "int8": "u8 by i8 in sums as narrow as the instruction set allows: an upper bound",
    "int8_widened": "the same with each sum widened to 32 bits at once",
    "bf16": "the bf16 dot product; 0 without such an instruction",
}


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What `bench machine` tells; the constants are kept."""

    constants: MachineConstants
    peaks: tuple[Peaks, ...]
    """For 1 thread and up, to all that were asked for."""


def measure_machine(
    *,
    threads: int,
    isa_cap: int,
    cpu: str,
    isa: str,
    directory: Path,
    progress: Callable[[str], None],
) -> MachineReport:
    """Measure everything: some seconds, and one more for each two threads.

    Args:
        directory: on the disk that is to be measured.
        progress: told what comes next.

    Raises:
        OSError: the directory cannot be written.
    """
    pool = make_threads(threads)
    progress("peaks and bandwidth")
    probes = NativeProbes(isa_cap=isa_cap, pools={threads: pool})
    peaks = tuple(measure_peaks(probes, count) for count in thread_counts(threads))
    bench = MachineBench(
        pool=pool, threads=threads, isa_cap=isa_cap, cpu=cpu, isa=isa, directory=directory
    )
    constants = bench.measure(progress)
    progress("bookkeeping")
    overheads = measure_overheads()
    constants = replace(
        constants,
        step_overhead_s=overheads.step_s,
        row_overhead_s=overheads.row_s,
        token_overhead_s=overheads.token_s,
    )
    return MachineReport(with_peaks(constants, peaks[-1]), peaks)


def with_peaks(constants: MachineConstants, peaks: Peaks) -> MachineConstants:
    """The constants with the limits of as many threads."""
    return replace(
        constants,
        dram_read_bytes_per_s=peaks.dram_bytes_per_s,
        cache_read_bytes_per_s=peaks.cache_bytes_per_s,
        fp32_peak_flops_per_s=peaks.ops_per_s["fma"],
        int8_peak_flops_per_s=peaks.ops_per_s["int8"],
    )


def thread_counts(threads: int) -> list[int]:
    """1, 2, 4 and so on, and the number itself: every number of a small machine."""
    if threads <= 4:
        return list(range(1, threads + 1))
    powers = [1 << bits for bits in range(threads.bit_length())]
    return [count for count in powers if count < threads] + [threads]
