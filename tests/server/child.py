"""`kokuban serve` in a process and with a cache directory of its own, that may be killed."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kokuban.core.env import for_child

ROOT = Path(__file__).resolve().parents[2]
END_S = 30


@dataclass(eq=False)
class Child:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def complete(self, prompt: Sequence[int], max_tokens: int = 6, **options: Any) -> "Answer":
        """One greedy completion that no end token ends, with the logprobs of its tokens."""
        key = options.pop("key", None)
        body = {
            "model": "m",
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 1,
            **options,
        }
        headers = {"authorization": f"Bearer {key}"} if key else {}
        response = httpx.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=60)
        assert response.status_code == 200, response.text
        found = response.json()
        [choice] = found["choices"]
        logprobs = choice["logprobs"]
        return Answer(
            (choice["text"], tuple(logprobs["tokens"]), tuple(logprobs["token_logprobs"])),
            found["usage"],
        )

    def metric(self, name: str, tier: str) -> int:
        """A metric of one tier of KV."""
        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf'^kokuban:{name}{{[^}}]*tier="{tier}"[^}}]*}} (\S+)$', text, re.M)
        assert found is not None, f"no metric {name} of {tier}"
        return int(float(found[1]))

    def said(self, what: str) -> int:
        """How many lines of the log hold a text."""
        return sum(what in line for line in self.log.read_text().splitlines())

    def kill(self) -> None:
        """As a machine that loses its power, but for what the system has taken already."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """In good order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_S) == 0, self.log.read_text()


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got."""

    proof: tuple[str, tuple[str, ...], tuple[float, ...]]
    """Text, tokens and logprobs: the same for the same computation."""

    usage: dict[str, Any]

    @property
    def cached(self) -> int:
        found: int = self.usage["prompt_tokens_details"]["cached_tokens"]
        return found

    @property
    def from_disk(self) -> int:
        found: int = self.usage["kokuban"]["cached_disk_tokens"]
        return found

    @property
    def from_ram(self) -> int:
        found: int = self.usage["kokuban"]["cached_ram_tokens"]
        return found


@contextmanager
def serving(
    model: Path, cache: Path, *options: str, wrapper: Sequence[str] = ()
) -> Iterator[Child]:
    """A server that answers; at the end of the block it is killed, unless it has ended by itself.

    Args:
        cache: its cache directory, where the secret and the disk tier lie. The log goes there too.
        wrapper: a command that runs the server as its last arguments.
    """
    cache.mkdir(exist_ok=True)
    log = cache / "server.log"
    command = [sys.executable, "-m", "kokuban", "serve", str(model), "--port", "0",
               "--served-model-name", "m", "--threads", "1", "--drain", "5", *options]  # fmt: skip
    with log.open("a") as file:
        process = subprocess.Popen(
            [*wrapper, *command],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True,
            env=for_child(PYTHONPATH=str(ROOT / "src"), KOKUBAN_CACHE=str(cache)),
        )  # fmt: skip
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        found = next(
            (match for line in lines if (match := re.search(r"ready at (http\S+)", line))), None
        )
        assert found is not None, f"the server did not start: {log.read_text()}"
        yield Child(process, found[1], log)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
