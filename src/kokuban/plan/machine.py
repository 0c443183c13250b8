"""What a machine can do, in some numbers: measured by `kokuban bench machine`, or guessed.

The measured numbers lie in the cache directory, in one file for each CPU, instruction set and
number of threads, since none of them holds for another. A file that is damaged, or that is about
another machine, is as good as none: a warning is logged and the guesses are used.
"""

import json
import logging
import math
import os
import secrets
from dataclasses import asdict, dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

_VERSION = 2
"""Of the file. Raise it when a number changes its meaning: old files are then ignored."""

_MAX_MEMORY_THREADS = 4
"""Threads beyond which a guess adds no memory bandwidth."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConstants:
    """Rates and overheads of one machine with all threads of the engine at work.

    The defaults are those of one thread of a modest server CPU.
    """

    int8_flops_per_s: float = 40e9
    """Matrix products of many rows with quantised weights; two for each multiply-add."""

    float_flops_per_s: float = 15e9
    """The same with weights of 16 or 32 bits."""

    attention_flops_per_s: float = 15e9
    """Attention of a long prompt's chunk; four for each head dimension of an attended pair."""

    weight_bytes_per_s: float = 5e9
    """Packed weights read from memory by a product of one row."""

    kv_bytes_per_s: float = 5e9
    """K and V read from the pool by attention of one token."""

    value_bytes_per_s: float = 4e9
    """float32 values read and written by norms, rotations, additions and activations."""

    copy_bytes_per_s: float = 3e9
    """A block copied between the pool and host memory: bytes moved once, by one thread."""

    disk_read_bytes_per_s: float = 200e6
    """Files of the cache directory's disk, read by one thread and not from the page cache."""

    disk_write_bytes_per_s: float = 100e6
    """Files written by one thread until they are on the disk."""

    disk_latency_s: float = 1e-3
    """Before the first byte of something on disk is there."""

    dram_read_bytes_per_s: float = 8e9
    """Main memory read and nothing done with it: the limit of steps of few tokens."""

    cache_read_bytes_per_s: float = 30e9
    """The same out of the last cache."""

    fp32_peak_flops_per_s: float = 50e9
    """Multiply-adds in registers, two each: the limit of what is computed in float32."""

    int8_peak_flops_per_s: float = 100e9
    """Bytes by bytes in registers, sums as narrow as can be: no product of quantised weights is
    faster."""

    op_overhead_s: float = 2e-6
    """Of each operation of a step: threads that are woken and wait for each other. A guess, also
    where the rest is measured."""

    step_overhead_s: float = 200e-6
    """Of each step, whatever is in it: planning, arrays, events."""

    row_overhead_s: float = 50e-6
    """Of each token that is sampled: sampler, bookkeeping, events."""

    token_overhead_s: float = 500e-9
    """Of each token that is computed: its part of the plan, its place in the arrays."""

    source: Literal["default", "measured"] = "default"
    cpu: str = ""
    """The CPU's name, as the system tells it."""

    isa: str = ""
    """One of `core.env.ISA_LEVELS`."""

    threads: int = 1
    date: str = ""
    """Day of the measurement, ISO 8601; empty for a guess."""


_NUMBERS = tuple(field.name for field in fields(MachineConstants) if field.name.endswith("_s"))


def at_its_limits(
    *,
    bytes_per_s: float,
    float_flops_per_s: float,
    int8_flops_per_s: float,
    int8_attention: bool,
) -> MachineConstants:
    """A machine on which each operation reaches the limit that binds it, and nothing lies between
    two of them: no engine is faster.

    Args:
        bytes_per_s: main memory, read.
        float_flops_per_s, int8_flops_per_s: in registers.
        int8_attention: it multiplies K and V as bytes.
    """
    return MachineConstants(
        int8_flops_per_s=int8_flops_per_s,
        float_flops_per_s=float_flops_per_s,
        attention_flops_per_s=int8_flops_per_s if int8_attention else float_flops_per_s,
        weight_bytes_per_s=bytes_per_s,
        kv_bytes_per_s=bytes_per_s,
        value_bytes_per_s=math.inf,
        op_overhead_s=0.0,
        step_overhead_s=0.0,
        row_overhead_s=0.0,
        token_overhead_s=0.0,
    )


def default_constants(*, cpu: str, isa: str, threads: int) -> MachineConstants:
    """A guess on the low side: what one modest thread does, times the threads.

    Memory, copies and disk do not grow with every thread.
    """
    guess = MachineConstants(cpu=cpu, isa=isa, threads=threads)
    share = min(threads, _MAX_MEMORY_THREADS)
    return replace(
        guess,
        int8_flops_per_s=guess.int8_flops_per_s * threads,
        float_flops_per_s=guess.float_flops_per_s * threads,
        attention_flops_per_s=guess.attention_flops_per_s * threads,
        value_bytes_per_s=guess.value_bytes_per_s * threads,
        weight_bytes_per_s=guess.weight_bytes_per_s * share,
        kv_bytes_per_s=guess.kv_bytes_per_s * share,
        dram_read_bytes_per_s=guess.dram_read_bytes_per_s * share,
        cache_read_bytes_per_s=guess.cache_read_bytes_per_s * threads,
        fp32_peak_flops_per_s=guess.fp32_peak_flops_per_s * threads,
        int8_peak_flops_per_s=guess.int8_peak_flops_per_s * threads,
    )


def machine_file(directory: Path, *, cpu: str, isa: str, threads: int) -> Path:
    """Where the numbers of this CPU, instruction set and number of threads lie."""
    key = blake2b(repr((cpu, isa, threads)).encode(), digest_size=8).hexdigest()
    return directory / f"machine-{key}.json"


def load_constants(directory: Path, *, cpu: str, isa: str, threads: int) -> MachineConstants:
    """The measured numbers, or a guess where there are none that can be used. Never fails."""
    path = machine_file(directory, cpu=cpu, isa=isa, threads=threads)
    guess = default_constants(cpu=cpu, isa=isa, threads=threads)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return guess
    except (OSError, UnicodeDecodeError) as error:
        _warn(path, str(error))
        return guess
    try:
        known = _parse(text)
    except (ValueError, TypeError, RecursionError) as error:
        _warn(path, str(error))
        return guess
    if (known.cpu, known.isa, known.threads) != (cpu, isa, threads):
        _warn(path, f"it is about {known.cpu}, {known.isa}, {known.threads} threads")
        return guess
    return known


def save_constants(directory: Path, constants: MachineConstants) -> Path:
    """Write the numbers, whole or not at all; returns the file's path.

    Raises:
        OSError: the directory cannot be written. What was there before is still there.
    """
    path = machine_file(directory, cpu=constants.cpu, isa=constants.isa, threads=constants.threads)
    directory.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    text = json.dumps({"version": _VERSION, **asdict(constants)}, indent=2) + "\n"
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _parse(text: str) -> MachineConstants:
    """Raises ValueError or TypeError for what `save_constants` cannot have written."""
    values: Any = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    if (version := values.pop("version", None)) != _VERSION:
        raise ValueError(f"it has version {version}, not {_VERSION}")
    if missing := {field.name for field in fields(MachineConstants)} - set(values):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    constants = MachineConstants(**values)
    for name in _NUMBERS:
        value = getattr(constants, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, no number")
        least = 0.0 if name.endswith(("overhead_s", "latency_s")) else math.ulp(0.0)
        if not least <= value < math.inf:
            raise ValueError(f"{name}={value} is out of range")
    texts = (constants.cpu, constants.isa, constants.date, constants.source)
    if not all(isinstance(each, str) for each in texts) or type(constants.threads) is not int:
        raise ValueError("cpu, isa, date and source are texts, threads is a number")
    if constants.source not in ("default", "measured"):
        raise ValueError(f"source={constants.source!r} is none of default, measured")
    return constants


def _warn(path: Path, problem: str) -> None:
    _log.warning(
        "%s cannot be used (%s); costs are guessed until `kokuban bench machine` has run again",
        path,
        problem,
    )
