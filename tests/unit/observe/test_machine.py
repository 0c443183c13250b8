"""CPUs and memory that a process may use, read from made-up /proc and /sys trees (bug bank B97)."""

import platform
from pathlib import Path

import pytest

from kokuban.observe.machine import (
    allowed_cpus,
    available_memory_bytes,
    cpu_flags,
    cpu_name,
    last_cache_bytes,
    num_threads,
)

MEMINFO = "MemTotal:       24000000 kB\nMemFree:  1000 kB\nMemAvailable:   20000000 kB\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/\n", "proc/meminfo": MEMINFO}
V1 = {
    "proc/self/cgroup": "5:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc\n0::/\n",
    "proc/meminfo": MEMINFO,
}
CPU_V1, MEMORY_V1 = "sys/fs/cgroup/cpuacct,cpu/docker/abc", "sys/fs/cgroup/memory/docker/abc"


@pytest.mark.parametrize(
    ("files", "affinity", "expected"),
    [
        (V2 | {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 8, 1),
        (V2 | {"sys/fs/cgroup/cpu.max": "350000 100000\n"}, 8, 3),
        (V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 8, 1),
        (V2 | {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8, 8),
        (V2 | {"sys/fs/cgroup/cpu.max": "600000 100000\n"}, 2, 2),
        (V1 | {f"{CPU_V1}/cpu.cfs_quota_us": "-1", f"{CPU_V1}/cpu.cfs_period_us": "100000"}, 8, 8),
        (
            V1 | {f"{CPU_V1}/cpu.cfs_quota_us": "250000", f"{CPU_V1}/cpu.cfs_period_us": "100000"},
            8,
            2,
        ),
        ({}, 4, 4),
    ],
)
def test_the_smallest_limit_rules_and_one_cpu_is_the_least(
    tmp_path: Path, files: dict[str, str], affinity: int, expected: int
) -> None:
    assert allowed_cpus(root=tree(tmp_path, files), affinity=affinity) == expected


def test_a_limit_of_an_outer_group_holds_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
    }

    assert allowed_cpus(root=tree(tmp_path, files), affinity=16) == 2


def test_both_generations_at_once_give_the_smaller_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu:/a\n0::/a\n",
        "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "600000",
        "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/unified/a/cpu.max": "300000 100000",
    }

    assert allowed_cpus(root=tree(tmp_path, files), affinity=16) == 3


def test_a_path_of_the_host_falls_back_to_the_root_of_the_mount(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/host/only/path\n",
        "sys/fs/cgroup/cpu.max": "200000 100000",
    }

    assert allowed_cpus(root=tree(tmp_path, files), affinity=16) == 2


def test_the_operator_wins_over_the_variable_and_the_variable_over_the_limits(
    tmp_path: Path,
) -> None:
    root = tree(tmp_path, V2 | {"sys/fs/cgroup/cpu.max": "100000 100000"})

    assert num_threads(3, omp_num_threads=6, root=root) == 3
    assert num_threads(0, omp_num_threads=6, root=root) == 6
    assert num_threads(0, root=root) == 1


def test_memory_without_a_limit_is_what_the_system_has_available(tmp_path: Path) -> None:
    root = tree(tmp_path, V2 | {"sys/fs/cgroup/memory.max": "max\n"})

    assert available_memory_bytes(root=root) == 20_000_000 * 1024


def test_memory_in_a_group_is_its_limit_less_what_it_uses_but_file_pages(tmp_path: Path) -> None:
    files = V2 | {
        "sys/fs/cgroup/memory.max": "4000000000",
        "sys/fs/cgroup/memory.current": "1500000000",
        "sys/fs/cgroup/memory.stat": "anon 900000000\ninactive_file 500000000\n",
    }

    assert available_memory_bytes(root=tree(tmp_path, files)) == 3_000_000_000


def test_the_first_generation_counts_by_its_own_names(tmp_path: Path) -> None:
    files = V1 | {
        f"{MEMORY_V1}/memory.limit_in_bytes": "2000000000",
        f"{MEMORY_V1}/memory.usage_in_bytes": "500000000",
        f"{MEMORY_V1}/memory.stat": "inactive_file 7\ntotal_inactive_file 100000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000000",
    }

    assert available_memory_bytes(root=tree(tmp_path, files)) == 1_600_000_000


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    files = V2 | {
        "sys/fs/cgroup/memory.max": "1000",
        "sys/fs/cgroup/memory.current": "2000",
    }

    assert available_memory_bytes(root=tree(tmp_path, files)) == 0


def test_this_machine_has_cpus_and_memory() -> None:
    assert allowed_cpus() >= 1
    assert available_memory_bytes() > 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: A CPU @ 2.0GHz\nmodel name\t: other\n", "A CPU @ 2.0GHz"),
        ("processor\t: 0\nmodel name\t:\n", None),
        ("", None),
    ],
)
def test_a_cpu_is_called_what_it_calls_itself(tmp_path: Path, text: str, name: str | None) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": text})

    assert cpu_name(root=root) == (name or platform.machine())


def test_the_flags_of_the_first_cpu_are_told(tmp_path: Path) -> None:
    text = "processor: 0\nflags\t\t: fpu avx2 fma\nprocessor: 1\nflags\t\t: fpu\n"

    assert cpu_flags(root=tree(tmp_path, {"proc/cpuinfo": text})) == ["fpu", "avx2", "fma"]
    assert cpu_flags(root=tmp_path / "none") == []


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    cache = "sys/devices/system/cpu/cpu0/cache"
    files = {f"{cache}/index0/size": "32K\n", f"{cache}/index2/size": "512K\n"}

    assert last_cache_bytes(root=tree(tmp_path, files)) == 512 << 10
    assert last_cache_bytes(root=tree(tmp_path, {f"{cache}/index3/size": "32M\n"})) == 32 << 20
    assert last_cache_bytes(root=tmp_path / "none") == 0
