"""An engine process that dies, hangs, cannot start or is spoken to by others."""

import asyncio
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from tests.fakes import continuation, make_request
from tests.unit.engine.scripted import (
    COMMAND,
    NUM_BLOCKS,
    RESTARTS,
    engine,
    events_of,
    make_process,
    until,
)

from kokuban.core.config import SchedulerConfig
from kokuban.core.errors import (
    ConfigError,
    EngineRestarting,
    ModelError,
    Overloaded,
    RequestError,
    StepFailed,
)
from kokuban.core.request import FinishReason
from kokuban.core.step import TokenEvent
from kokuban.engine.mailbox import MAX_UNREAD
from kokuban.engine.process import wire
from kokuban.engine.process.client import ProcessClient
from kokuban.engine.process.supervisor import Policy
from kokuban.engine.process.watchdog import Watchdog
from kokuban.observe.logs import JsonFormatter

CONFIG = SchedulerConfig(token_budget=64, max_running_requests=32)


@contextmanager
def process(directory: Path, policy: Policy = RESTARTS, **limits: int) -> Iterator[ProcessClient]:
    with engine("process", directory, policy=policy, **limits) as client:
        assert isinstance(client, ProcessClient)
        yield client


def child_of(pid: int) -> int:
    """The one child of a process."""
    [child] = Path(f"/proc/{pid}/task").glob("*/children") and [
        int(word)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for word in path.read_text().split()
    ]
    return child


def is_there(pid: int) -> bool:
    """Whether a process runs (a dead one that nobody has waited for does not)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_32_requests_of_a_killed_engine_fail_within_2_s_and_the_next_engine_is_whole(
    tmp_path: Path,
) -> None:
    """B88, B90: every client is told, nothing leaks, nobody has to look after it."""
    (tmp_path / "slow").touch()
    with process(tmp_path) as client:
        pid = child_of(os.getpid())
        reader = client.kv_events()
        await anext(reader)
        begun: set[str] = set()
        all_begun = asyncio.Event()

        async def read(name: str) -> TokenEvent:
            async for event in client.submit([make_request(name, 5, max_tokens=480)]):
                begun.add(name)
                await all_begun.wait()  # None can end before: unread tokens suspend it.
                last = event
            return last

        tasks = [asyncio.create_task(read(f"r{i}")) for i in range(32)]
        await until(lambda: len(begun) == 32)
        all_begun.set()
        os.kill(pid, signal.SIGSTOP)  # So that it answers nothing more.
        asked = asyncio.create_task(client.reset_prefix_cache())
        await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(2):
            ends = await asyncio.gather(*tasks)
            with pytest.raises(StepFailed, match="killed by SIGKILL"):
                await asked
            with pytest.raises(StopAsyncIteration):
                await anext(reader)
        for end in ends:
            assert end.finish is FinishReason.ERROR
            assert end.error is not None
            assert "the engine process was killed by SIGKILL" in end.error
        assert client.alive()
        assert not client.ready()
        assert client.stats().running == client.stats().waiting == 0

        (tmp_path / "slow").unlink()
        await until(client.ready)
        again = make_request("again", 20, max_tokens=30)
        events = await events_of(client, again)

        assert [token.token_id for event in events for token in event.tokens] == continuation(
            again.prompt_token_ids, 30
        )
        assert client.stats().free_blocks == NUM_BLOCKS
        assert client.stats().restarts == 1
        assert child_of(os.getpid()) != pid


async def test_who_is_told_of_an_end_finds_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow").touch()
    with process(tmp_path) as client:
        found: list[tuple[int, int]] = []
        fail_all = client._pending.fail_all

        def look_and_fail(*why: Any) -> None:
            found.append((client.stats().running, client.stats().free_blocks))
            fail_all(*why)

        monkeypatch.setattr(client._pending, "fail_all", look_and_fail)
        reading = asyncio.create_task(events_of(client, make_request("r", max_tokens=400)))
        await until(lambda: client.stats().running == 1)
        os.kill(child_of(os.getpid()), signal.SIGKILL)
        await reading

        assert found == [(0, NUM_BLOCKS)]


async def test_requests_that_a_dead_engine_had_not_taken_are_refused_each_by_itself(
    tmp_path: Path,
) -> None:
    """One exception for all would keep the traceback of every place that awaits one of them."""
    with process(tmp_path) as client:
        pid = child_of(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        late = [asyncio.create_task(events_of(client, make_request(f"r{i}"))) for i in range(3)]
        await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)

        async with asyncio.timeout(2):
            refusals = await asyncio.gather(*late, return_exceptions=True)

        assert [type(refusal) for refusal in refusals] == [EngineRestarting] * 3
        assert len({id(refusal) for refusal in refusals}) == 3


async def test_while_an_engine_is_replaced_requests_are_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    policy = Policy(first_delay_s=30, max_delay_s=30)
    with process(tmp_path, policy) as client:
        for _ in range(2):
            await until(client.ready)
            os.kill(child_of(os.getpid()), signal.SIGKILL)
            await until(lambda: not client.ready())
        await asyncio.sleep(0.1)  # Until the pause has been chosen.

        with pytest.raises(EngineRestarting) as refused:
            await events_of(client, make_request("r"))
        with pytest.raises(EngineRestarting):
            await client.session_status("t", "s")
        with pytest.raises(EngineRestarting):
            await anext(client.kv_events())

        assert 30 <= refused.value.retry_after_s <= 35
        assert client.alive()  # The end comes at once, in spite of the pause.


async def test_an_engine_that_dies_again_and_again_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy(max_failures=3, first_delay_s=0.01)
    with process(tmp_path, policy) as client:
        (tmp_path / "exit").touch()  # Whatever step it makes is its last.
        ends = []
        for _ in range(3):
            await until(client.ready)
            try:
                [end] = await events_of(client, make_request("r"))
                ends.append(end.error or "")
            except EngineRestarting:  # It had no time to say that it took the request.
                ends.append("ended with exit code 9")
        await until(lambda: not client.alive())

        assert all("ended with exit code 9" in end for end in ends)
        assert "the engine failed 3 times" in caplog.text
        assert not client.ready()
        with pytest.raises(StepFailed, match="has stopped"):
            await events_of(client, make_request("late"))
        with pytest.raises(StepFailed):
            await client.reset_prefix_cache()
        with pytest.raises(StepFailed):
            await anext(client.kv_events())


async def test_an_engine_whose_step_failed_is_replaced(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        (tmp_path / "break").touch()
        [end] = await events_of(client, make_request("r"))
        assert end.error is not None
        assert end.error == "the engine stopped after an internal error; see the server's log"
        await until(lambda: not client.ready())
        (tmp_path / "break").unlink()

        await until(client.ready)
        events = await events_of(client, make_request("again"))

        assert events[-1].finish is FinishReason.LENGTH


async def test_a_reader_that_is_behind_suspends_its_request_and_nobody_elses(
    tmp_path: Path,
) -> None:
    slow, other = make_request("slow", 8, max_tokens=400), make_request("other", 3, max_tokens=90)
    (tmp_path / "slow").touch()  # The engine is to be told before it is through.
    with process(tmp_path) as client:
        reading = client.submit([slow])
        events = [await anext(reading)]
        await until(lambda: client.stats().running == 0)
        (tmp_path / "slow").unlink()
        told = client.stats()
        others = await events_of(client, other)  # Meanwhile.
        still = client.stats()
        events += [event async for event in reading]

    assert (told.waiting, told.free_blocks) == (1, NUM_BLOCKS)
    assert MAX_UNREAD < told.output_tokens < 400
    assert others[-1].finish is FinishReason.LENGTH
    assert still.output_tokens - told.output_tokens == 90
    tokens = [token.token_id for event in events for token in event.tokens]
    assert tokens == continuation(slow.prompt_token_ids, 400)
    assert [event.finish for event in events if event.finish] == [FinishReason.LENGTH]


async def test_a_slow_reader_that_leaves_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with process(tmp_path) as client:
        async with aclosing(client.submit([make_request("r", 8, max_tokens=400)])) as reading:
            await anext(reading)
            await until(lambda: client.stats().running == 0)
        (tmp_path / "slow").unlink()
        await until(lambda: client.stats().waiting == 0)
        events = await events_of(client, make_request("again", max_tokens=90))

        assert events[-1].finish is FinishReason.LENGTH
        assert client.stats().free_blocks == NUM_BLOCKS


async def test_an_engine_process_logs_in_the_form_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter())
    monkeypatch.setattr(logging.getLogger("kokuban"), "handlers", [handler])
    with process(tmp_path) as client:
        (tmp_path / "break").touch()
        await events_of(client, make_request("r"))
        (tmp_path / "break").unlink()

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    [line] = [line for line in lines if line["logger"] == "kokuban.engine.thread"]
    assert line["message"] == "the engine stopped after an internal error"
    assert line["exception"].endswith("RuntimeError")


def test_a_start_that_fails_says_what_the_engine_says(tmp_path: Path) -> None:
    (tmp_path / "refuse").touch()
    client = make_process(tmp_path, CONFIG)
    with pytest.raises(ModelError, match="is no model: it says “no”"):
        client.wait_ready()
    client.close()
    assert not client.alive()


async def test_a_restart_that_fails_is_tried_again(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        (tmp_path / "refuse").touch()
        os.kill(child_of(os.getpid()), signal.SIGKILL)
        await until(lambda: not client.ready())
        await asyncio.sleep(0.6)  # Long enough for a start to fail.
        (tmp_path / "refuse").unlink()

        await until(client.ready)
        events = await events_of(client, make_request("again"))

        assert events[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([sys.executable, "-c", "import sys; sys.exit(3)"], "ended with exit code 3"),
        (["/nonexistent/python"], "no engine process can be started"),
    ],
)
def test_a_process_that_says_nothing_is_told_as_it_ended(
    tmp_path: Path, command: list[str], why: str
) -> None:
    client = make_process(tmp_path, CONFIG, command=command)
    with pytest.raises((StepFailed, ConfigError), match=why):
        client.wait_ready()
    client.close()


def test_an_engine_of_another_version_is_refused(tmp_path: Path) -> None:
    code = COMMAND[-1].replace("run()", "from kokuban.engine.process import wire; "
                               "wire.PROTOCOL = 99; run()")  # fmt: skip
    client = make_process(tmp_path, CONFIG, command=[*COMMAND[:-1], code])
    with pytest.raises(ConfigError, match="version 99 of the protocol, this server 1"):
        client.wait_ready()
    client.close()


def test_an_engine_that_is_closed_while_it_starts_is_gone(tmp_path: Path) -> None:
    client = make_process(tmp_path, CONFIG, command=[sys.executable, "-c", "input()"])
    client.close()

    with pytest.raises(StepFailed):
        client.wait_ready()


async def test_a_stopped_process_is_noticed_and_replaced(tmp_path: Path) -> None:
    watchdogs: list[Watchdog] = []

    def watchdog() -> Watchdog:
        watchdogs.append(Watchdog(tick_s=0.05))
        return watchdogs[-1]

    policy = Policy(first_delay_s=0.01, watchdog=watchdog)
    with process(tmp_path, policy) as client:
        watchdogs[-1].max_silence_s = 1.5  # Not before: a start may be silent on a loaded machine.
        pid = child_of(os.getpid())
        (tmp_path / "hold").touch()
        task = asyncio.create_task(events_of(client, make_request("r")))
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGSTOP)

        [end] = await task
        (tmp_path / "hold").unlink()
        await until(client.ready)

        assert end.error is not None
        assert f"(pid {pid}) has said nothing for 1.5 s; killed" in end.error
        assert not is_there(pid)


async def test_a_step_without_end_is_noticed_and_replaced(tmp_path: Path) -> None:
    policy = Policy(first_delay_s=0.01, watchdog=lambda: Watchdog(max_step_s=0.3, tick_s=0.05))
    with process(tmp_path, policy) as client:
        events = await events_of(client, make_request("before"))
        assert events[-1].finish is FinishReason.LENGTH
        (tmp_path / "hold").touch()

        [end] = await events_of(client, make_request("r"))
        (tmp_path / "hold").unlink()
        await until(client.ready)

        assert end.error is not None
        assert "has ended no step for 0.3 s, and requests wait; killed" in end.error


async def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
        "from pathlib import Path; from tests.unit.engine.test_process import *\n"
        f"client = make_process(Path({str(tmp_path)!r}), CONFIG)\n"
        "client.wait_ready(); print('ready', flush=True); input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        assert parent.stdout.readline() == b"ready\n"
        child = child_of(parent.pid)
        assert is_there(child)

        parent.kill()
        parent.wait()

        await until(lambda: not is_there(child))


def test_a_terminal_that_interrupts_the_group_leaves_the_end_to_the_server(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        pid = child_of(os.getpid())
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)

        events = asyncio.run(events_of(client, make_request("r")))

        assert events[-1].finish is FinishReason.LENGTH
        assert os.getpgid(pid) == os.getpgid(os.getpid())


async def test_messages_that_nobody_understands_do_no_harm(tmp_path: Path) -> None:
    with process(tmp_path) as client:
        send = client._supervisor.send
        good = wire.encode(wire.Submit(7, (make_request("r"),)))
        for data in (
            b"",
            b"\xc1",
            b"x" * 1_000_000,
            wire.encode(["Unknown", 1]),
            wire.encode(["Submit", 10_001, "none"]),
            wire.encode(["Submit", "x"]),
            wire.encode(["Call", 5, ["RunCode", "import os"]]),
            wire.encode(["Watch", 2**63, None]),
            good[:-3],
            good.replace(b"temperature\xcb", b"temperature\xcb\xff"),
        ):
            client._loop.call_soon_threadsafe(send, data)

        events = await events_of(client, make_request("after"))

        assert events[-1].finish is FinishReason.LENGTH
        assert client.stats().restarts == 0


async def test_a_request_that_the_engine_cannot_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process(tmp_path) as client:
        encode = wire.encode

        def damaged(message: wire.Message) -> bytes:
            data = encode(message)
            return data.replace(b"temperature\xcb\x00", b"temperature\xcb\x7f")

        monkeypatch.setattr(wire, "encode", damaged)
        with pytest.raises(RequestError, match="cannot read this request: temperature="):
            await events_of(client, make_request("r"))
        monkeypatch.undo()

        assert (await events_of(client, make_request("r")))[-1].finish is FinishReason.LENGTH


async def test_strangers_on_the_socket_are_not_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = tmp_path / "s"
    sockets.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(sockets))
    (tmp_path / "slow").touch()
    client = make_process(tmp_path, CONFIG, command=["sleep", "60"])
    await until(lambda: bool(list(sockets.glob("*/engine"))))
    [path] = sockets.glob("*/engine")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"ipc://{path}")
        stranger.send(wire.encode(wire.StartFailed(wire.Failure("ModelError", "ha"))))
        await asyncio.sleep(0.3)
        assert client.alive()
    client.close()
    with pytest.raises(StepFailed, match="was shut down"):
        client.wait_ready()
    assert not list(sockets.iterdir())


async def test_nothing_is_left_of_the_socket_once_the_engine_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = tmp_path / "s"
    sockets.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(sockets))
    with process(tmp_path):
        assert not list(sockets.iterdir())


async def test_a_server_that_does_not_read_holds_the_engine_up_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """What waits for it is bounded: the engine stops when its outbox is full."""
    code = COMMAND[-1].replace(
        "run()", "from kokuban.engine.process import outbox; "
        "outbox.MAX_OUTBOX_BYTES = 3000; run()"
    )  # fmt: skip
    client = make_process(tmp_path, CONFIG, command=[*COMMAND[:-1], code])
    client.wait_ready()
    try:
        requests = [make_request(f"r{i}", 5, max_tokens=300) for i in range(8)]
        tasks = [asyncio.create_task(events_of(client, request)) for request in requests]
        await asyncio.sleep(0)
        client._loop.call_soon_threadsafe(lambda: os.read(gate[0], 1))
        gate = os.pipe()
        await asyncio.sleep(0.5)
        os.write(gate[1], b"x")
        found = await asyncio.gather(*tasks)
    finally:
        client.close()
        for end in gate:
            os.close(end)

    for request, events in zip(requests, found, strict=True):
        tokens = [token.token_id for event in events for token in event.tokens]
        assert tokens == continuation(request.prompt_token_ids, 300)


async def test_more_than_the_engine_can_take_is_refused_here(tmp_path: Path) -> None:
    with process(tmp_path, max_running_requests=2, max_waiting_requests=3) as client:
        os.kill(child_of(os.getpid()), signal.SIGSTOP)
        tasks = [
            asyncio.create_task(events_of(client, make_request(f"r{i}", max_tokens=2)))
            for i in range(6)
        ]
        await until(tasks[5].done)
        with pytest.raises(Overloaded, match="5 requests wait for the engine"):
            await tasks[5]
        os.kill(child_of(os.getpid()), signal.SIGCONT)

        for task in tasks[:5]:
            assert (await task)[-1].finish is FinishReason.LENGTH


async def test_nobody_is_busy_for_who_left_while_a_grammar_was_compiled(tmp_path: Path) -> None:
    """Otherwise an engine with nothing to do would be given up for ending no step."""
    plain = make_request("r")
    request = replace(plain, params=replace(plain.params, grammar="start: /a*/"))
    with process(tmp_path) as client:
        asked = asyncio.create_task(events_of(client, request))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await client.reset_prefix_cache()  # Comes behind the cancellation.

        assert not client.busy


def test_a_watchdog_does_not_count_the_time_that_it_slept_itself() -> None:
    watchdog = Watchdog(max_silence_s=3)
    assert watchdog.tick(1, busy=False) is None
    assert watchdog.tick(10_000, busy=False) is None  # As when the machine was suspended.
    assert watchdog.tick(1, busy=False) == "has said nothing for 3 s"


def test_a_watchdog_counts_a_step_only_while_somebody_waits_for_it() -> None:
    watchdog = Watchdog(max_step_s=3)
    assert [watchdog.tick(2, busy=False) for _ in range(9)] == [None] * 9
    assert watchdog.tick(2, busy=True) is None
    watchdog.hear(5)
    assert watchdog.tick(2, busy=True) is None
    watchdog.hear(5)
    assert watchdog.tick(2, busy=True) == "has ended no step for 3 s, and requests wait"
