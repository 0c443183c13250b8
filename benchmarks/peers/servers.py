"""Servers under test: each is a process of its own, asked over HTTP."""

import argparse
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

READY_LIMIT_S, POLL_S = 120.0, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKind:
    """How a server is started; `--port N` is added."""

    name: str
    command: tuple[str, ...]
    ready_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One that answers."""

    kind: ServerKind
    url: str
    ready_s: float
    """From its start to the first positive answer at `ready_path`."""

    pid: int

    def peak_mb(self) -> float:
        """The most memory that it had resident so far, in 10⁶ bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
        raise LookupError(f"/proc/{self.pid}/status tells no VmHWM")


def kokuban(model: Path, threads: int, options: Sequence[str] = ()) -> ServerKind:
    """`kokuban serve` as it comes."""
    command = (sys.executable, "-m", "kokuban", "serve", str(model), "--threads", str(threads))
    return ServerKind(name="kokuban", command=(*command, *options), ready_path="/ready")


def llama_cpp(
    directory: Path, model: Path, threads: int, *, slots: int, tokens_each: int
) -> ServerKind:
    """llama.cpp's server with a slot for each client, flash attention and continuous batching."""
    command = (
        str(directory / "llama-server"), "-m", str(model), "-t", str(threads), "-tb", str(threads),
        "-np", str(slots), "-c", str(slots * tokens_each), "-cb", "-fa", "on",
        "-b", "2048", "-ub", "512", "--no-ui",
    )  # fmt: skip
    return ServerKind(name="llama.cpp", command=command, ready_path="/health")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark of servers asks for."""
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--peers", type=Path, help="where the peers are, as docs/peers.md says")
    parser.add_argument("--llama-bin", type=Path, help="where llama-server is; default: in --peers")
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--json", type=Path, help="write all figures to this file too")


def kinds_of(
    args: argparse.Namespace, *, slots: int, tokens_each: int
) -> tuple[list[ServerKind], dict[str, str]]:
    """The servers that can run, ours first; and of the other, by name, why not."""
    kinds = [kokuban(args.model, args.threads)]
    directory = args.llama_bin or (args.peers and args.peers / "llama-bin")
    if directory is None:
        return kinds, {"llama.cpp": "not measured: neither --peers nor --llama-bin was given"}
    if not (directory / "llama-server").exists():
        return kinds, {"llama.cpp": f"not measured: {directory} has no llama-server"}
    peer = llama_cpp(directory, args.model, args.threads, slots=slots, tokens_each=tokens_each)
    return [*kinds, peer], {}


@contextmanager
def running(kind: ServerKind) -> Iterator[Server]:
    """The server, ready; it is ended at the end.

    Raises:
        SystemExit: it ended, or was not ready in two minutes; with the end of its output.
    """
    port = _free_port()
    with tempfile.TemporaryFile("w+") as log:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [*kind.command, "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
        url = f"http://127.0.0.1:{port}"
        try:
            while not _answers(url + kind.ready_path):
                if process.poll() is not None or time.perf_counter() - begin > READY_LIMIT_S:
                    log.seek(0)
                    sys.exit(f"{kind.name} did not start: {log.read()[-2000:]}")
                time.sleep(POLL_S)
            ready_s = time.perf_counter() - begin
            yield Server(kind=kind, url=url, ready_s=ready_s, pid=process.pid)
        finally:
            process.terminate()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
