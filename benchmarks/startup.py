"""How long does a server take from its start to its first answer, and how much memory?

Starts servers in alternation, waits until they say that they are ready, asks for one token, and
stops them again. The model's file should be in the page cache: the first round is not counted.

    python benchmarks/startup.py smollm2.gguf --rounds 7
    python benchmarks/startup.py smollm2.gguf --peer ../llama.cpp/build/bin/llama-server
    python benchmarks/startup.py smollm2.gguf --other ../old-checkout/src     # beside another tree

Says, as medians: seconds to ready and to the first answer, CPU seconds to ready (which another
process on the machine changes less), and MiB of memory: the most so far (VmHWM) when ready, what
is held (VmRSS) when ready, the part of it that is no file (RssAnon), and the most after the answer.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600
POLL_S = 0.002
TICKS = os.sysconf("SC_CLK_TCK")


class Start(NamedTuple):
    """One start; its fields are the columns."""

    ready_s: float
    answer_s: float
    cpu_s: float
    hwm_mib: float
    rss_mib: float
    anon_mib: float
    hwm_after_mib: float


class Way(NamedTuple):
    """One server to be started."""

    name: str
    command: list[str]
    ready_path: str


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def memory(pid: int) -> dict[str, float]:
    """MiB of the process, by the kernel's names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) / 1024 for name, value in pairs}


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(POLL_S)
        if process.poll() is not None:
            sys.exit(f"{process.args} ended with {process.returncode}")


def start(way: Way, model: str) -> Start:
    """Start a server, ask it once, stop it."""
    port = free_port()
    command = [part.format(port=port) for part in way.command]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}"
        wait_ready(process, base + way.ready_path)
        ready_s = time.perf_counter() - begun
        cpu_s, at_ready = cpu(process.pid), memory(process.pid)
        body = json.dumps({"model": "m", "prompt": "The sky is", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            base + "/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read()
        answer_s = time.perf_counter() - begun
        return Start(
            ready_s, answer_s, cpu_s, at_ready["VmHWM"], at_ready["VmRSS"], at_ready["RssAnon"],
            memory(process.pid)["VmHWM"],
        )  # fmt: skip
    finally:
        process.terminate()
        process.wait()


def ways(given: argparse.Namespace) -> list[Way]:
    ours = [sys.executable, "-m", "kokuban", "serve", given.model, "--port", "{port}",
            "--served-model-name", "m"]  # fmt: skip
    # Byte code is written at the first start, as an installation does it.
    usual = ["env", "-u", "PYTHONDONTWRITEBYTECODE"]
    found = [Way("kokuban", [*usual, *ours], "/ready")]
    if given.other:
        found.append(Way("other", [*usual, f"PYTHONPATH={given.other}", *ours], "/ready"))
    if given.peer:
        peer = [given.peer, "-m", given.model, "--port", "{port}", "-t", "2", "-fa", "1"]
        found.append(Way("llama-server", peer, "/health"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="llama.cpp's llama-server")
    parser.add_argument("--other", help="the src folder of another checkout of Kokuban")
    given = parser.parse_args()
    all_ways = ways(given)
    starts: dict[str, list[Start]] = {way.name: [] for way in all_ways}
    for round_number in range(given.rounds + 1):
        for way in all_ways:
            found = start(way, given.model)
            if round_number:
                starts[way.name].append(found)
    print(f"{'':14}" + "".join(f"{name:>14}" for name in Start._fields))
    for name, rows in starts.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:14}" + "".join(f"{value:14.3f}" for value in medians))


if __name__ == "__main__":
    main()
