"""An engine without a model, as a thread or as a process, that a test can hold up and break.

What a test wants of it while it runs are files in its directory: `hold` stops it before its next
step, `slow` makes each step last 2 ms at least, `break` makes that step fail, `exit` ends the
process with exit code 9, `refuse` makes its start fail.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.fakes import FakeRunner

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import ModelError
from kokuban.core.request import Request
from kokuban.core.step import StepPlan, StepResult, TokenEvent
from kokuban.engine.client import EngineClient, EngineInfo, OwnedClient
from kokuban.engine.core import EngineCore
from kokuban.engine.grammars import GrammarStore
from kokuban.engine.process import wire
from kokuban.engine.process.child import main
from kokuban.engine.process.client import ProcessClient
from kokuban.engine.process.supervisor import Policy
from kokuban.engine.thread import EngineThread
from kokuban.kvcache.events import EventLog
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.observe.clock import SystemClock
from kokuban.sampling.grammar import CompiledGrammar, GrammarCompiler
from kokuban.scheduler.scheduler import Scheduler
from kokuban.weights.progress import Progress

Kind = Literal["thread", "process"]
KINDS: tuple[Kind, ...] = ("thread", "process")
NUM_BLOCKS = 64
MAX_CONTEXT = 512
RESTARTS = Policy(first_delay_s=0.01, stop_s=10)
_ROOT = Path(__file__).resolve().parents[3]
COMMAND = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:0] = {[str(_ROOT), str(_ROOT / 'src')]}; "
    f"from tests.unit.engine.scripted import run; run()",
)


class Executor:
    """Runs plans on a `FakeRunner`."""

    depth = 0

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._runner = FakeRunner()
        self._result: StepResult | None = None

    def submit(self, plan: StepPlan) -> None:
        while (self._directory / "hold").exists():
            time.sleep(0.001)
        if (self._directory / "slow").exists():
            time.sleep(0.002)
        if (self._directory / "break").exists():
            raise RuntimeError("the kernel burnt")
        if (self._directory / "exit").exists():
            os._exit(9)
        self._result = self._runner.run(plan)

    def collect(self) -> StepResult:
        assert self._result is not None
        return self._result

    def close(self) -> None:
        (self._directory / "closed").touch()


class Compiler:
    """Compiles for the byte tokenizer; a start does not wait for that."""

    def compile(self, source: str) -> CompiledGrammar:
        from tests.fakes_text import EOT, byte_tokenizer

        return GrammarCompiler(byte_tokenizer(), [EOT], 262).compile(source)


def make_thread(directory: Path, config: SchedulerConfig) -> EngineThread:
    """The engine, in this process."""
    log = EventLog("e") if config.prefix_cache else None
    space = KeySpace(
        secret=bytes(16), model_digest=b"m", numerics_id="n", kv_dtype="bf16", block_size=16
    )
    manager = Manager(
        BlockPool(NUM_BLOCKS, log=log), block_size=16, key_space=space if log else None
    )
    scheduler = Scheduler(config, manager, max_context_tokens=MAX_CONTEXT)
    info = EngineInfo(
        model="m", vocab_size=50_000, max_context_tokens=MAX_CONTEXT, block_size=16,
        num_blocks=NUM_BLOCKS, bytes_per_token=1, kv_pool_bytes=16 * NUM_BLOCKS,
        num_kv_tokens=16 * NUM_BLOCKS, requests_at_full_length=2, kv_dtype="bf16", threads=1,
        isa="scalar", token_budget=config.token_budget, prefix_cache=config.prefix_cache,
    )  # fmt: skip
    core = EngineCore(scheduler, manager, Executor(directory), SystemClock(), log=log)
    return EngineThread(core, info, grammars=GrammarStore(Compiler()))


def build(start: wire.Start, report: Progress) -> EngineThread:
    """The engine, in a child."""
    if (start.files / "refuse").exists():
        raise ModelError(f"{start.files} is no model: it says “no”")
    report("packing nothing", 1, 2)
    return make_thread(start.files, start.scheduler)


def run() -> None:
    """What a child runs."""
    main(build)


def make_process(
    directory: Path,
    config: SchedulerConfig,
    *,
    policy: Policy = RESTARTS,
    command: Sequence[str] = COMMAND,
) -> ProcessClient:
    """The engine in a process, not awaited."""
    return ProcessClient(directory, "m", config, RuntimeConfig(), policy=policy, command=command)


@contextmanager
def engine(
    kind: Kind, directory: Path, *, policy: Policy = RESTARTS, **limits: int
) -> Iterator[OwnedClient]:
    """An engine that runs, closed at the end."""
    config = SchedulerConfig(
        token_budget=64, max_running_requests=limits.pop("max_running_requests", 32), **limits
    )
    client: OwnedClient
    if kind == "thread":
        client = make_thread(directory, config)
    else:
        client = make_process(directory, config, policy=policy)
        client.wait_ready()
    try:
        yield client
    finally:
        (directory / "hold").unlink(missing_ok=True)
        client.close()


async def events_of(client: EngineClient, *requests: Request) -> list[TokenEvent]:
    """All that comes of them, in time."""
    async with asyncio.timeout(20):
        return [event async for event in client.submit(requests)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, not for ever."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)
