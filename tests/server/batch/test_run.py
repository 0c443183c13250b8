"""A batch: every line has its result, whatever becomes of the others and of the process."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.server.asgi import Json, make_app
from tests.server.fakes import FAILS, FakeEngine, Served, served
from tests.server.live import PIECES, A

from kokuban.core.env import for_child
from kokuban.server.batch.lines import BatchResult
from kokuban.server.batch.run import Batch
from kokuban.server.batch.sink import BatchStopped, Sink
from kokuban.server.batch.source import Source

ROOT = Path(__file__).resolve().parents[3]
CHAT = "/v1/chat/completions"


def line(name: str, url: str = "/v1/completions", **fields: Any) -> Json:
    body = {"model": "m", "prompt": "p", "max_tokens": 2, **fields}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def chat(name: str, url: str = CHAT) -> Json:
    messages = [{"role": "user", "content": "p"}]
    body = {"model": "m", "messages": messages, "max_tokens": 2}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def write(path: Path, *lines: Json | str) -> Source:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return Source(path, 100_000)


def read(path: Path) -> dict[str | None, Json]:
    results = [json.loads(text) for text in path.read_text().splitlines()]
    found = {result["custom_id"]: result for result in results}
    assert len(found) == len(results)
    return found


async def run(
    model: Served,
    source: Source,
    path: Path,
    *,
    concurrency: int = 4,
    on_result: Callable[[BatchResult], None] = lambda result: None,
) -> dict[str | None, Json]:
    with Sink(path) as sink:
        batch = Batch(
            make_app(model), model.client.alive, source, sink,
            concurrency=concurrency, on_result=on_result,
        )  # fmt: skip
        await batch.run()
    return read(path)


def speaking(**engine: Any) -> Served:
    return served(pieces=PIECES, engine=FakeEngine({10: A, ord("p"): A}, **engine))


async def test_every_api_answers(tmp_path: Path) -> None:
    source = write(tmp_path / "in", line("a"), chat("b"), chat("c", "/v1/messages"))

    found = await run(speaking(), source, tmp_path / "out")

    assert set(found) == {"a", "b", "c"}
    for result in found.values():
        assert result["error"] is None
        assert result["id"].startswith("batch_req_")
        assert result["response"]["status_code"] == 200
        assert len(result["response"]["request_id"]) == 24
    bodies = {name: result["response"]["body"] for name, result in found.items()}
    assert bodies["a"]["choices"][0]["text"] == "HelloHello"
    assert bodies["b"]["choices"][0]["message"]["content"] == "HelloHello"
    assert bodies["c"]["content"][0]["text"] == "HelloHello"


async def test_a_bad_line_costs_nobody_else_anything(tmp_path: Path) -> None:
    source = write(
        tmp_path / "in", line("a"), "{", line("b", model="no"), line("c", "/v1/files"),
        line("d", stream=True), line("e", "/v1/embeddings") | {"body": {"x": 1}}, line("f"),
    )  # fmt: skip

    found = await run(speaking(), source, tmp_path / "out")

    assert len(found) == 7
    statuses = {name: (each["response"] or {}).get("status_code") for name, each in found.items()}
    assert [statuses[name] for name in "abf"] == [200, 404, 200]
    assert statuses["e"] == 400
    assert found["b"]["response"]["body"]["error"]["code"] == "model_not_found"
    assert found["c"]["error"]["code"] == "invalid_url"
    assert found["d"]["error"]["code"] == "invalid_request"
    assert found[None]["error"]["line"] == 2


async def test_a_result_is_one_line_however_an_answer_is_written(tmp_path: Path) -> None:
    source = write(tmp_path / "in", line("a"))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response('{\n "a": [1.50,\r\n 2]\n}')(scope, receive, send)

    with Sink(tmp_path / "out") as sink:
        await Batch(
            app, lambda: True, source, sink, concurrency=1, on_result=lambda result: None
        ).run()

    [text] = (tmp_path / "out").read_text().splitlines()
    assert json.loads(text)["response"]["body"] == {"a": [1.5, 2]}


async def test_a_request_that_the_engine_fails_is_one_result(tmp_path: Path) -> None:
    model = served({ord("p"): A, ord("q"): FAILS}, pieces=PIECES)
    source = write(tmp_path / "in", line("a", prompt="q"), line("b"))

    found = await run(model, source, tmp_path / "out")

    assert found["a"]["response"]["status_code"] == 500
    assert found["b"]["response"]["status_code"] == 200


async def test_no_more_run_at_a_time_than_is_asked_for(tmp_path: Path) -> None:
    model = speaking()
    model.client.pause()
    source = write(tmp_path / "in", *(line(f"{i}") for i in range(9)))

    task = asyncio.create_task(run(model, source, tmp_path / "out", concurrency=3))
    await model.client.until(running=3)
    assert read(tmp_path / "out") == {}
    model.client.resume()

    assert len(await task) == 9
    assert len(model.client.submitted) == 9


async def test_what_is_refused_for_want_of_room_is_sent_again(tmp_path: Path) -> None:
    """One seat and a queue of one: of four at a time two are always refused at first."""
    model = speaking(seats=1, max_waiting=1)
    source = write(tmp_path / "in", *(line(f"{i}") for i in range(12)))

    found = await run(model, source, tmp_path / "out")

    assert {result["response"]["status_code"] for result in found.values()} == {200}
    assert len(model.client.submitted) == 12


async def test_what_is_refused_with_nobody_in_its_way_stays_refused(tmp_path: Path) -> None:
    model = speaking(seats=0, max_waiting=0)
    source = write(tmp_path / "in", *(line(f"{i}") for i in range(5)))

    found = await run(model, source, tmp_path / "out", concurrency=3)

    assert [result["response"]["status_code"] for result in found.values()] == [429] * 5


async def test_a_dead_engine_stops_the_batch_and_what_it_had_done_is_kept(tmp_path: Path) -> None:
    model = speaking()
    source = write(tmp_path / "in", *(line(f"{i}") for i in range(20)))
    num_results = 0

    def count(result: BatchResult) -> None:
        nonlocal num_results
        num_results += 1
        if num_results == 5:
            model.client.die()

    with pytest.raises(BatchStopped, match="the engine has stopped; 5 results are in"):
        await run(model, source, tmp_path / "out", concurrency=1, on_result=count)

    assert list(read(tmp_path / "out")) == [f"{i}" for i in range(5)]
    found = await run(speaking(), source, tmp_path / "out")
    assert len(found) == 20
    assert {result["response"]["status_code"] for result in found.values()} == {200}


async def test_a_batch_that_is_done_asks_nothing_more(tmp_path: Path) -> None:
    model = speaking()
    source = write(tmp_path / "in", line("a"), "{", line("b", model="no"))

    first = await run(model, source, tmp_path / "out")
    again = await run(model, source, tmp_path / "out")

    assert first == again
    assert len(model.client.submitted) == 1


async def test_a_cancelled_batch_leaves_whole_lines_and_no_request(tmp_path: Path) -> None:
    model = speaking()
    source = write(tmp_path / "in", *(line(f"{i}") for i in range(9)))
    model.client.pause()
    task = asyncio.create_task(run(model, source, tmp_path / "out", concurrency=3))
    await model.client.until(running=3)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await model.client.until(running=0)
    assert read(tmp_path / "out") == {}


def test_a_killed_batch_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in the middle, twice; then once to the end: each request has one result."""
    names = [f"n{i}" for i in range(30)]
    source = write(tmp_path / "in", *(line(name) for name in names))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tests.server.batch.child", str(source.path), str(out)]
    environment = for_child(PYTHONPATH=f"{ROOT}:{ROOT / 'src'}")
    kept: dict[str | None, Json] = {}
    for _ in range(2):
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            told = {child.stdout.readline().strip() for _ in range(7)}
            child.kill()
        before, kept = kept, read(out)
        assert told <= set(kept)
        assert before.items() <= kept.items()
        with out.open("a") as file:  # As if it had been killed within a write.
            file.write('{"id": "batch_req_1", "custom_id": "n2')

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    results = read(out)
    assert done.returncode == 0
    assert set(results) == set(names)
    assert set(done.stdout.split()) == set(names) - set(kept)
    assert kept.items() <= results.items()
