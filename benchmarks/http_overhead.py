"""What does HTTP cost beside `LLM.generate` on the same engine?

One process holds one engine and asks it both ways in alternation: offline through `LLM.generate`,
and through its own HTTP server with one stream for each prompt. The client is a process of its own
that only counts bytes; it shares the machine's cores, so its CPU time is told separately. Prompts
are random ids, new in every round, so that nothing is found in the cache.

    python benchmarks/http_overhead.py smollm2 --streams 64 --prompt 128 --output 64 --rounds 5
    python benchmarks/http_overhead.py smollm2 --switch-ms 5 1 0.2      # the interpreter's interval

Says, as medians over the rounds: output tokens/s of both ways and their ratio; CPU time a token of
the event loop's thread, of the engine's thread and of the client; time to the first token, and the
gap between two events of a stream, at p50 and p99.
"""

import argparse
import asyncio
import itertools
import json
import random
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

VOCAB = 32_000
"""Random ids lie below it: every model that is served has as many."""


@dataclass
class Figures:
    """Of one interval's rounds."""

    offline: list[float] = field(default_factory=list)
    http: list[float] = field(default_factory=list)
    loop_us: list[float] = field(default_factory=list)
    engine_us: list[float] = field(default_factory=list)
    offline_loop_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    worst_gap_ms: list[float] = field(default_factory=list)

    def line(self) -> str:
        """Medians; the ratio is the median of the rounds' ratios."""
        ratio = statistics.median(
            http / off for http, off in zip(self.http, self.offline, strict=True)
        )
        m = statistics.median
        return (
            f"{m(self.offline):8.0f} {m(self.http):8.0f} {ratio:6.3f} | {m(self.loop_us):7.0f} "
            f"{m(self.offline_loop_us):7.0f} {m(self.engine_us):8.0f} {m(self.client_us):7.0f} | "
            f"{m(self.ttft_ms):8.0f} {m(self.gap_ms):7.1f} {m(self.worst_gap_ms):7.1f}"
        )


HEAD = (
    "   offline     http  ratio | loop us (offline)  engine  client |  TTFT ms  gap ms    p99"
    "   (us: CPU a token)"
)


def client(address: tuple[str, int], bodies: Sequence[bytes], output: int) -> dict[str, Any]:
    """Send everything at once, read until every stream has ended. Parses nothing but the ends."""
    selector = selectors.DefaultSelector()
    cpu, begun = time.process_time(), time.perf_counter()
    times: dict[socket.socket, list[float]] = {}
    tails: dict[socket.socket, bytes] = {}
    for body in bodies:
        sock = socket.create_connection(address)
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ)
        times[sock], tails[sock] = [], b""
    num_tokens = 0
    while selector.get_map():
        for key, _ in selector.select():
            sock: Any = key.fileobj
            data = sock.recv(65536)
            if data:
                if b"data: {" in data:
                    times[sock].append(time.perf_counter())
                tails[sock] = (tails[sock] + data)[-1024:]
                continue
            selector.unregister(sock)
            sock.close()
            tail = tails[sock]
            if b"[DONE]" not in tail or b'"completion_tokens":%d,' % output not in tail:
                sys.exit(f"a stream failed: {tail!r}")
            num_tokens += output
    wall_s = time.perf_counter() - begun
    gaps = sorted(b - a for each in times.values() for a, b in itertools.pairwise(each))
    return {
        "wall_s": wall_s,
        "tokens": num_tokens,
        "cpu_s": time.process_time() - cpu,
        "ttft_ms": statistics.median(each[0] - begun for each in times.values()) * 1e3,
        "gap_ms": statistics.median(gaps) * 1e3,
        "worst_gap_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
    }


def run_client() -> None:
    given = json.load(sys.stdin)
    bodies = [body.encode() for body in given["bodies"]]
    json.dump(client(("127.0.0.1", given["port"]), bodies, given["output"]), sys.stdout)


@contextmanager
def serving(engine: Any) -> Iterator[tuple[int, threading.Thread]]:
    """The engine's HTTP server on a thread of this process: its port, and the thread."""
    from kokuban.server.app import create_app
    from kokuban.server.listen import bind
    from kokuban.server.run import Server
    from kokuban.server.settings import ServerSettings

    settings = ServerSettings(port=0, max_waiting_requests=4096)
    sock = bind(settings)
    ready = threading.Event()
    app = create_app(engine, settings)
    server = Server(app, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    ready.wait()
    try:
        yield sock.getsockname()[1], thread
    finally:
        server.should_exit = True
        thread.join()


def cpu_of(name: str) -> float:
    """CPU seconds of a thread of this process."""
    [thread] = [each for each in threading.enumerate() if each.name == name]
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    return time.clock_gettime(clock)


def measure(llm: Any, port: int, loop: str, given: argparse.Namespace, figures: Figures) -> None:
    """One round of both ways."""
    from kokuban import SamplingParams

    num_tokens = given.streams * given.output

    def prompts() -> list[list[int]]:
        return [random.choices(range(10, VOCAB), k=given.prompt) for _ in range(given.streams)]

    params = SamplingParams(max_tokens=given.output, temperature=0.0, ignore_eos=True)
    cpu, begun = cpu_of("kokuban-llm"), time.perf_counter()
    llm.generate(prompts(), params)
    figures.offline.append(num_tokens / (time.perf_counter() - begun))
    figures.offline_loop_us.append((cpu_of("kokuban-llm") - cpu) / num_tokens * 1e6)

    common = {
        "model": llm.engine.client.info.model,
        "max_tokens": given.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    bodies = [json.dumps({**common, "prompt": ids}) for ids in prompts()]
    work = {"port": port, "output": given.output, "bodies": bodies}
    before = cpu_of(loop), cpu_of("kokuban-engine")
    done = subprocess.run(
        [sys.executable, __file__, "--client"],
        input=json.dumps(work), capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = cpu_of(loop), cpu_of("kokuban-engine")
    found = json.loads(done.stdout)
    figures.http.append(num_tokens / found["wall_s"])
    figures.loop_us.append((after[0] - before[0]) / num_tokens * 1e6)
    figures.engine_us.append((after[1] - before[1]) / num_tokens * 1e6)
    figures.client_us.append(found["cpu_s"] / num_tokens * 1e6)
    figures.ttft_ms.append(found["ttft_ms"])
    figures.gap_ms.append(found["gap_ms"])
    figures.worst_gap_ms.append(found["worst_gap_ms"])


def main() -> None:
    if sys.argv[1:] == ["--client"]:
        run_client()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--switch-ms", type=float, nargs="+", default=[0.0],
                        help="switch intervals to alternate; 0: as it is")  # fmt: skip
    given = parser.parse_args()

    from kokuban import LLM

    usual = sys.getswitchinterval()
    with LLM(given.model) as llm, serving(llm.engine) as (port, thread):
        tables = {each: Figures() for each in given.switch_ms}
        warm = argparse.Namespace(**{**vars(given), "output": 4})
        measure(llm, port, thread.name, warm, Figures())
        for _ in range(given.rounds):
            for interval, figures in tables.items():
                sys.setswitchinterval(interval / 1e3 or usual)
                measure(llm, port, thread.name, given, figures)
    print(
        f"{given.streams} streams of {given.prompt} + {given.output} tokens, {given.rounds} rounds"
    )
    print(f"switch ms {HEAD}")
    for interval, figures in tables.items():
        print(f"{interval or usual * 1e3:9.2f} {figures.line()}")


if __name__ == "__main__":
    main()
