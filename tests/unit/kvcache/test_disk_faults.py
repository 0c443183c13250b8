"""What disks and killed processes do to a store: never other bytes, never an exception.

By hand, with more rounds and the figures:
    PYTHONPATH=src python -m tests.unit.kvcache.test_disk_faults --faults 1000 --kills 1000
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.kvcache.disk_blocks import (
    SLOT_BYTES,
    content,
    open_store,
    put,
    right,
)

ROOT = Path(__file__).resolve().parents[3]
FAULT_ROUNDS = 980
KILL_ROUNDS = 20
NUM_BLOCKS = 24

Fault = Callable[[random.Random, Path], None]


def flip_a_bit(random_: random.Random, path: Path) -> None:
    with path.open("r+b") as file:
        offset = random_.randrange(path.stat().st_size)
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << random_.randrange(8)]))


def cut_off(random_: random.Random, path: Path) -> None:
    os.truncate(path, random_.randrange(path.stat().st_size))


def delete(_: random.Random, path: Path) -> None:
    path.unlink()


FAULTS: dict[str, Fault] = {"bit flipped": flip_a_bit, "file cut": cut_off, "file deleted": delete}


def make_templates(directory: Path) -> list[Path]:
    """A store that was closed in order, and one whose process was killed: with its -wal file."""
    closed, killed = directory / "closed", directory / "killed"
    for template in (closed, killed):
        store = open_store(directory / "store", max_blocks=30)
        # Some blocks have been removed and replaced before, as in a store that has lived.
        put(store, *range(100, 106))
        for number in range(100, 106):
            store.remove(content(number))
        put(store, *range(NUM_BLOCKS))
        if template is killed:
            shutil.copytree(directory / "store", template)
        store.close()
        if template is closed:
            shutil.copytree(directory / "store", template)
    return [closed, killed]


def copy(source: Path, target: Path) -> None:
    """Copy the files of a directory in place of those of another."""
    for path in target.iterdir():
        path.unlink()
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name)


def run_faults(directory: Path, rounds: int, *, seed: int = 1) -> Counter[str]:
    """Damage a store in one place, open it, ask for every block; `rounds` times.

    Returns:
        How many blocks came back and how many were missed, by what had happened, and how often
        something was missed at all.
    """
    random_ = random.Random(seed)
    templates = make_templates(directory)
    victim = directory / "victim"
    victim.mkdir()
    found: Counter[str] = Counter()
    for number in range(rounds):
        copy(random_.choice(templates), victim)
        name, fault = list(FAULTS.items())[number % 7 % 3]  # flips are 3 of 7
        files = sorted(victim.iterdir())
        fault(random_, random_.choice([path for path in files if path.stat().st_size]))
        store = open_store(victim, max_blocks=30)
        store.check()
        present = right(store, *range(NUM_BLOCKS))
        hits, counters = sum(present), store.counters
        assert NUM_BLOCKS - hits >= counters.bad, "a block that was found is counted as bad"
        if number % 8 == 0:  # What was lost can be written and read again.
            assert all(put(store, *range(NUM_BLOCKS)))
            assert all(right(store, *range(NUM_BLOCKS)))
            store.check()
        store.close()
        found.update({
            f"{name}: rounds": 1,
            f"{name}: right": hits,
            f"{name}: missed": NUM_BLOCKS - hits,
            f"{name}: found bad on read": counters.bad,
            f"{name}: lost at open": counters.lost_at_open,
            f"{name}: rounds with a miss": hits < NUM_BLOCKS,
        })  # fmt: skip
    return found


CHILD = """
import random, sys
from pathlib import Path
from tests.unit.kvcache.disk_blocks import content, open_store, payload, put, right
random_ = random.Random(int(sys.argv[2]))
store = open_store(Path(sys.argv[1]), max_blocks=30)
right(store, *range(60))
while True:
    number = random_.randrange(60)
    if random_.random() < 0.1:
        store.remove(content(number))
    elif random_.random() < 0.002:
        store.clear()
    else:
        put(store, number)
        right(store, number)
    sys.stdout.write(".")
    sys.stdout.flush()
"""


def run_kills(directory: Path, rounds: int, *, seed: int = 1) -> Counter[str]:
    """Kill a process that writes, removes and reads without end, then open what it left."""
    random_ = random.Random(seed)
    found: Counter[str] = Counter()
    for number in range(rounds):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(directory), str(number)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={"PYTHONPATH": "src:."},
        )
        assert child.stdout is not None
        # The child is somewhere in what it does next when the signal comes.
        wanted = random_.randrange(1, 300)
        assert len(child.stdout.read(wanted)) == wanted, "the child ended by itself"
        child.kill()
        child.wait()
        child.stdout.close()
        store = open_store(directory, max_blocks=30)
        store.check()
        listed = store.num_blocks
        present = right(store, *range(60))
        assert sum(present) + store.counters.bad == listed
        store.check()
        store.close()
        found.update({
            "kills": 1,
            "right": sum(present),
            "found bad on read": store.counters.bad,
            "lost at open": store.counters.lost_at_open,
        })  # fmt: skip
    return found


def test_a_damaged_store_gives_right_bytes_or_misses(tmp_path: Path) -> None:
    found = run_faults(tmp_path, FAULT_ROUNDS)

    for name in FAULTS:
        rounds = found[f"{name}: rounds"]
        assert rounds >= FAULT_ROUNDS // 4
        assert found[f"{name}: right"] + found[f"{name}: missed"] == rounds * NUM_BLOCKS
        assert 0 < found[f"{name}: rounds with a miss"] < rounds
    # One bit costs one block at most; it may lie in bytes that nobody needs.
    assert found["bit flipped: missed"] <= found["bit flipped: rounds"]
    assert found["bit flipped: found bad on read"] > found["bit flipped: rounds"] // 8


def test_a_process_killed_while_it_writes_leaves_a_usable_store(tmp_path: Path) -> None:
    found = run_kills(tmp_path, KILL_ROUNDS)

    assert found["kills"] == KILL_ROUNDS
    assert found["right"] > 5 * KILL_ROUNDS
    # At most the block in hand, and the one whose slot it took.
    assert found["found bad on read"] + found["lost at open"] <= 2 * KILL_ROUNDS


LIMITED = """
import resource, sys
from pathlib import Path
from tests.unit.kvcache.disk_blocks import content, open_store, put, right
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
now = 0.0
store = open_store(Path(sys.argv[1]), max_blocks=200, slots_per_segment=1000, clock=lambda: now)
written = put(store, *range(100))
reads = right(store, *range(100))
now = 1000.0
retried = put(store, 150)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
now = 2000.0
freed = put(store, 160, 161)
store.check()
store.close()
print(sum(written), written == reads, retried, freed, store.counters.refused)
"""


def test_a_file_that_may_not_grow_stops_writing_until_it_may(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(50 * SLOT_BYTES + 1000)],
        capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": "src:."},
    )  # fmt: skip

    assert done.stdout == "50 True [False] [True, True] 51\n"
    assert done.stderr.count("reading goes on") == 1
    store = open_store(tmp_path, max_blocks=200, slots_per_segment=1000)
    assert right(store, *range(52)) == [True] * 50 + [False] * 2
    assert right(store, 150, 160, 161) == [False, True, True]
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command here")
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_gives_what_it_has_and_takes_nothing_more(small_disk: Path) -> None:
    now = 0.0
    with (small_disk / "other").open("wb") as other:
        other.write(bytes(600 << 10))
    directory = small_disk / "store"
    store = open_store(directory, max_blocks=1000, slots_per_segment=1000, clock=lambda: now)
    written = put(store, *range(200))
    assert 50 < sum(written) < 105
    assert written == sorted(written, reverse=True)
    assert right(store, *range(200)) == written
    now = 1000.0
    assert put(store, 300) == [False]
    store.close()

    # Opened again on the full disk, with and without its index.
    for _ in range(2):
        store = open_store(directory, max_blocks=1000, slots_per_segment=1000, clock=lambda: now)
        assert right(store, *range(200)) == written
        store.close()
        (directory / "kokuban-kv.sqlite3").unlink(missing_ok=True)

    (small_disk / "other").unlink()
    store = open_store(directory, max_blocks=1000, slots_per_segment=1000, clock=lambda: now)
    assert all(put(store, 300, 301))
    assert right(store, *range(200)) == written
    store.check()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=FAULT_ROUNDS)
    parser.add_argument("--kills", type=int, default=KILL_ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for run, rounds in ((run_faults, options.faults), (run_kills, options.kills)):
        with tempfile.TemporaryDirectory() as directory:
            for name, count in sorted(run(Path(directory), rounds, seed=options.seed).items()):
                print(f"{name:<36}{count:>8,}")


if __name__ == "__main__":
    main()
