"""Servers that are killed while they write KV to disk, and started again on what is left of it.

By hand, with more rounds and the figures:
    PYTHONPATH=src python -m tests.server.test_killed_servers --rounds 20
"""

import argparse
import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest
from tests.server.child import Answer, Child, serving
from tests.unit.kvcache.test_disk_faults import cut_off, delete, flip_a_bit
from tools.make_tiny_models import write_tiny_model

ROUNDS = 2
BLOCK_BYTES = 16 * 768
POOL = ("--kv-memory", str(24 * BLOCK_BYTES))
TIERS = (*POOL, "--kv-disk", "16MiB")
"""A pool for 384 tokens, and no more host memory than the disk needs to pass through."""

random_ = random.Random(7)
PROMPTS = [[random_.randrange(300) for _ in range(100 - 3 * i)] for i in range(10)]
"""Together 54 blocks: twice the pool."""


DAMAGES = (
    ("bit flipped", flip_a_bit),
    ("file cut", cut_off),
    ("nothing", None),
    ("file deleted", delete),
)


def make_model(directory: Path) -> Path:
    return write_tiny_model(directory, "llama", form="gguf", dtype="q8_0")


def cold_answers(model: Path, directory: Path) -> list[Answer]:
    """Of a server that keeps nothing."""
    with serving(model, directory / "cold", *POOL, "--no-prefix-cache") as child:
        found = [child.complete(prompt) for prompt in PROMPTS]
        child.stop()
    assert all(answer.cached == 0 for answer in found)
    return found


def store_files(cache: Path) -> list[Path]:
    """Everything of the store that has bytes in it."""
    return sorted(
        path for path in (cache / "kv").rglob("*") if path.is_file() and path.stat().st_size
    )


def kill_while_it_writes(child: Child, random_: random.Random) -> None:
    """Keep four clients busy with texts that are new, and kill the server in the middle of it."""
    enough = threading.Event()
    lock = threading.Lock()
    lines_left = random_.randrange(1, 150)

    def busy(seed: float) -> None:
        nonlocal lines_left
        own = random.Random(seed)
        while not enough.is_set():
            prompt = [own.randrange(300) for _ in range(own.randrange(40, 200))]
            body = {"model": "m", "prompt": prompt, "max_tokens": 20, "stream": True}
            try:
                with httpx.stream("POST", f"{child.url}/v1/completions", json=body) as response:
                    for _ in response.iter_lines():
                        with lock:
                            lines_left -= 1
                        if lines_left <= 0:
                            enough.set()
            except httpx.TransportError:
                # The server is gone, as it should be.
                enough.set()

    clients = [threading.Thread(target=busy, args=(random_.random(),)) for _ in range(4)]
    for client in clients:
        client.start()
    assert enough.wait(60), "the server says nothing"
    assert child.process.poll() is None, child.log.read_text()
    child.kill()
    for client in clients:
        client.join(60)
        assert not client.is_alive()


def run_rounds(directory: Path, rounds: int, *, seed: int = 1) -> Counter[str]:
    """Kill, damage, start again, ask for everything that has been asked before; `rounds` times.

    Returns:
        What happened, and how many prompt tokens came from where.
    """
    random_ = random.Random(seed)
    model, cache = make_model(directory), directory / "cache"
    cold = cold_answers(model, directory)
    found: Counter[str] = Counter()
    with serving(model, cache, *TIERS) as child:
        for prompt, expected in zip(PROMPTS, cold, strict=True):
            assert child.complete(prompt).proof == expected.proof
        child.stop()
    for number in range(rounds):
        files = store_files(cache)
        name, fault = DAMAGES[number % len(DAMAGES)]
        if fault is not None:
            # Mostly where the blocks are: the index is small.
            largest = max(files, key=lambda path: path.stat().st_size)
            fault(random_, largest if random_.random() < 0.7 else random_.choice(files))
        with serving(model, cache, *TIERS) as child:
            order = random_.sample(range(len(PROMPTS)), len(PROMPTS))
            for index in order:
                answer = child.complete(PROMPTS[index])
                assert answer.proof == cold[index].proof, f"round {number}, {name}: another answer"
                found[f"{name}: tokens from disk"] += answer.from_disk
                found[f"{name}: tokens computed"] += len(PROMPTS[index]) - answer.cached
            found["blocks counted as failed"] += child.metric("kv_tier_failed_blocks_total", "disk")
            kill_while_it_writes(child, random_)
        found[f"{name}: rounds"] += 1
    log = (cache / "server.log").read_text()
    assert "Traceback" not in log, log
    found["rounds"] = rounds
    found["log: damaged block"] = log.count("KV block on disk is damaged")
    found["log: found by headers"] = log.count("found by their headers")
    return found


def test_a_server_killed_and_damaged_again_and_again_gives_the_cold_answers(tmp_path: Path) -> None:
    found = run_rounds(tmp_path, ROUNDS)

    assert found["rounds"] == ROUNDS
    # What was damaged is computed, and counted; what was not comes from disk.
    [flipped, cut] = (found[f"{name}: tokens from disk"] for name in ("bit flipped", "file cut"))
    assert flipped > sum(map(len, PROMPTS)) // 2
    assert flipped + cut < 2 * sum(map(len, PROMPTS))


LIMITED = (
    "import os, resource, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def test_a_full_disk_costs_one_warning_and_no_answer(tmp_path: Path) -> None:
    """No file may grow beyond 20 blocks; the prompts need 54."""
    model, cache = make_model(tmp_path), tmp_path / "cache"
    cold = cold_answers(model, tmp_path)
    wrapper = (sys.executable, "-c", LIMITED, str(20 * BLOCK_BYTES))

    with serving(model, cache, *TIERS, wrapper=wrapper) as child:
        for _ in range(3):
            for prompt, expected in zip(PROMPTS, cold, strict=True):
                assert child.complete(prompt).proof == expected.proof
        child.stop()
        assert child.said("KV blocks cannot be written to disk") == 1
        assert child.said("Traceback") == 0
    with serving(model, cache, *TIERS) as child:
        answers = [child.complete(prompt) for prompt in PROMPTS]
        child.stop()

    assert [answer.proof for answer in answers] == [answer.proof for answer in cold]
    assert 0 < sum(answer.from_disk for answer in answers) <= 20 * 16


@pytest.mark.parametrize("tiers", [("--kv-ram", "8MiB"), ("--kv-disk", "16MiB")])
def test_a_reset_leaves_nothing_in_any_tier(tmp_path: Path, tiers: tuple[str, ...]) -> None:
    model, cache = make_model(tmp_path), tmp_path / "cache"
    with serving(model, cache, *POOL, *tiers, "--admin-key", "admin") as child:
        for prompt in PROMPTS:
            child.complete(prompt, key="admin")
        assert sum(child.complete(prompt, key="admin").cached for prompt in PROMPTS) > 0
        headers = {"authorization": "Bearer admin"}
        reset = httpx.post(f"{child.url}/reset_prefix_cache", headers=headers)
        assert reset.status_code == 200

        assert [child.complete(prompt, key="admin").cached for prompt in PROMPTS] == [0] * len(
            PROMPTS
        )
        child.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = run_rounds(Path(directory), options.rounds, seed=options.seed)
    for name, count in sorted(found.items()):
        print(f"{name:<36}{count:>8,}")


if __name__ == "__main__":
    main()
