"""What this process may use of its machine: CPUs and memory, limits of its container included.

Both generations of Linux control groups are read: limits of version 2 lie in one tree, those of
version 1 in a tree for each controller. A limit of any group above the process holds too. Where a
file is missing or says "max", there is no limit.
"""

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kokuban.core.config import check_threads

_ROOT = Path("/")

_UNLIMITED = 2**60
"""Version 1 states no limit as a number near 2⁶³; no machine of ours has this much memory."""


def num_threads(requested: int, *, omp_num_threads: int | None = None, root: Path = _ROOT) -> int:
    """Threads that compute: the operator's number, else OMP_NUM_THREADS, else the CPUs allowed.

    Args:
        requested: 0 when the operator chose none.
        omp_num_threads: that variable of the environment, None when it is not set.

    Raises:
        ConfigError: the operator's number is one that no machine has.
    """
    return check_threads(requested) or omp_num_threads or allowed_cpus(root=root)


def allowed_cpus(*, root: Path = _ROOT, affinity: int | None = None) -> int:
    """CPUs that this process may keep busy at once: at least 1, a fraction of a CPU rounded down.

    Args:
        root: where /proc and /sys are found.
        affinity: CPUs that the process may run on; None: the system is asked.
    """
    if affinity is None:
        affinity = _affinity()
    quotas = [quota for group in _groups(root, "cpu") if (quota := _cpu_quota(group)) is not None]
    return max(1, int(min([affinity, *quotas])))


def available_memory_bytes(*, root: Path = _ROOT) -> int:
    """Memory that can be taken without swapping anyone out, within the control group's limit.

    Pages of files that the group read and nobody uses count as free.
    """
    free = [left for group in _groups(root, "memory") if (left := _memory_left(group)) is not None]
    return max(0, min([_system_memory(root), *free]))


def cpu_name(*, root: Path = _ROOT) -> str:
    """What the CPU calls itself; its architecture where it does not say."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()


def cpu_flags(*, root: Path = _ROOT) -> list[str]:
    """Features that the first CPU names, in its order; empty where the system does not say."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return value.split()
    return []


def last_cache_bytes(*, root: Path = _ROOT) -> int:
    """Size of the first CPU's largest cache; 0 where the system does not say."""
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _text(path).strip()
        factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        if (digits := text.rstrip("KM")).isdecimal():
            sizes.append(int(digits) * factor)
    return max(sizes)


def _affinity() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _system_memory(root: Path) -> int:
    """MemAvailable; where there is no /proc, all physical memory."""
    for line in _text(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of the process's control groups that may limit `controller`, innermost first."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0":
            bases = [mount, mount / "unified"]
        elif controller in names.split(","):
            bases = [mount / names, mount / controller]
        else:
            continue
        relative = PurePosixPath(path.lstrip("/"))
        # Inside a container the path can be the host's and not exist: then the root still holds.
        for base in bases:
            for group in (relative, *relative.parents):
                if (directory := base / group).is_dir():
                    yield directory


def _cpu_quota(group: Path) -> float | None:
    """CPU seconds a second."""
    quota, period = "max", "0"
    if fields := _text(group / "cpu.max").split():
        quota, period = fields[0], fields[-1]
    elif text := _text(group / "cpu.cfs_quota_us").strip():
        quota, period = text, _text(group / "cpu.cfs_period_us").strip() or "0"
    if quota in ("max", "-1") or int(period) <= 0:
        return None
    return int(quota) / int(period)


def _memory_left(group: Path) -> int | None:
    for limit_name, usage_name, cache_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _number(group / limit_name), _number(group / usage_name)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            return limit - usage + _statistic(group / "memory.stat", cache_key)
    return None


def _statistic(path: Path, key: str) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
