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
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from peers.servers import ServerKind, running

TIMEOUT_S = 600
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


def memory(pid: int) -> dict[str, float]:
    """MiB of the process, by the kernel's names."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) / 1024 for name, value in pairs}


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def start(kind: ServerKind) -> Start:
    """Start a server, ask it once, stop it."""
    begun = time.perf_counter()
    with running(kind) as server:
        cpu_s, at_ready = cpu(server.pid), memory(server.pid)
        body = json.dumps({"model": "m", "prompt": "The sky is", "max_tokens": 1}).encode()
        request = urllib.request.Request(
            server.url + "/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            response.read()
        answer_s = time.perf_counter() - begun
        return Start(
            server.ready_s, answer_s, cpu_s, at_ready["VmHWM"], at_ready["VmRSS"],
            at_ready["RssAnon"], memory(server.pid)["VmHWM"],
        )  # fmt: skip


def check_other(source: str) -> None:
    """An editable installation finds its own tree first, whatever PYTHONPATH says."""
    code = "import kokuban; print(kokuban.__file__)"
    command = ["env", f"PYTHONPATH={source}", sys.executable, "-c", code]
    found = subprocess.check_output(command, text=True).strip()
    if not Path(found).resolve().is_relative_to(Path(source).resolve()):
        sys.exit(
            f"--other {source}: kokuban is imported from {found}; use a python without an editable "
            f"installation (`make setup` in a clone makes one)"
        )


def kinds(given: argparse.Namespace) -> list[ServerKind]:
    ours = (sys.executable, "-m", "kokuban", "serve", given.model, "--served-model-name", "m")
    # Byte code is written at the first start, as an installation does it.
    usual = ("env", "-u", "PYTHONDONTWRITEBYTECODE")
    found = [ServerKind(name="kokuban", command=(*usual, *ours), ready_path="/ready")]
    if given.other:
        check_other(given.other)
        command = (*usual, f"PYTHONPATH={given.other}", *ours)
        found.append(ServerKind(name="other", command=command, ready_path="/ready"))
    if given.peer:
        peer = (given.peer, "-m", given.model, "-t", "2", "-fa", "1")
        found.append(ServerKind(name="llama-server", command=peer, ready_path="/health"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="llama.cpp's llama-server")
    parser.add_argument("--other", help="the src folder of another checkout of Kokuban")
    given = parser.parse_args()
    all_kinds = kinds(given)
    starts: dict[str, list[Start]] = {kind.name: [] for kind in all_kinds}
    for round_number in range(given.rounds + 1):
        for kind in all_kinds:
            found = start(kind)
            if round_number:
                starts[kind.name].append(found)
    print(f"{'':14}" + "".join(f"{name:>14}" for name in Start._fields))
    for name, rows in starts.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:14}" + "".join(f"{value:14.3f}" for value in medians))


if __name__ == "__main__":
    main()
