"""`kokuban bench serve` against a scripted server: whatever happens, it is told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.server.scripted import ScriptedServer, scripted, scripted_thread

from kokuban.bench.answer import Outcome
from kokuban.bench.connection import first_model, parse_address
from kokuban.bench.jobs import Job
from kokuban.bench.load import LoadRunner, Run, Target
from kokuban.cli import app, main
from kokuban.core.errors import ConfigError


def job(prompt: Any = "hello", arrival_s: float = 0.0, **changes: Any) -> Job:
    return Job(prompt=prompt, max_tokens=4, arrival_s=arrival_s, **changes)


async def run_all(
    server: ScriptedServer, *jobs: Job, max_concurrency: int = 0, **target: Any
) -> Run:
    chosen: dict[str, Any] = {
        "address": parse_address(server.url),
        "model": "m",
        "endpoint": "completions",
        "timeout_s": 5.0,
    }
    runner = LoadRunner(Target(**(chosen | target)), max_concurrency=max_concurrency)
    try:
        return await runner.run(jobs)
    finally:
        runner.close()


async def outcome_of(prompt: str, **target: Any) -> Outcome:
    async with scripted() as server:
        [outcome] = (await run_all(server, job(prompt), **target)).outcomes
        return outcome


async def test_an_answer_has_its_texts_times_and_usage() -> None:
    found = await outcome_of("hello")

    assert (found.error, found.finish, len(found.text_s)) == (None, "length", 3)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (7, 4, 5)
    assert 0 <= found.sent_s <= found.text_s[0] <= found.end_s


@pytest.mark.parametrize(
    ("prompt", "error", "detail"),
    [
        ("busy", "http_429", "come back later"),
        ("broken", "http_500", "boom"),
        ("whole", "no_stream", "choices"),
        ("reset", "disconnected", "the connection was closed"),
        ("cut", "disconnected", "the connection was closed"),
        ("strange", "bad_http", "no status line"),
        ("fails", "error_event", "out of luck"),
        ("empty", "empty", "without any token"),
    ],
)
async def test_each_failure_has_its_kind(prompt: str, error: str, detail: str) -> None:
    found = await outcome_of(prompt)

    assert found.error == error
    assert detail in found.detail
    assert found.end_s > 0


async def test_an_answer_that_never_ends_is_a_timeout() -> None:
    found = await outcome_of("hang", timeout_s=0.05)

    assert (found.error, found.detail) == ("timeout", "no end of the answer after 0.05 s")


async def test_a_server_that_is_not_there_is_a_failed_connection() -> None:
    async with scripted() as server:
        pass

    [found] = (await run_all(server, job())).outcomes

    assert found.error == "connect"


async def test_without_usage_events_are_counted() -> None:
    found = await outcome_of("counts")

    assert (found.error, found.output_tokens, found.tokens) == (None, None, 3)


async def test_arrivals_do_not_wait_for_answers() -> None:
    """The server answers nobody before all five have come: a closed loop would never end."""
    async with scripted(wanted=5) as server:
        run = await run_all(server, *(job("together", 0.002 * i) for i in range(5)))

    assert [outcome.error for outcome in run.outcomes] == [None] * 5
    assert (run.max_running, server.most_running) == (5, 5)
    assert [outcome.arrival_s for outcome in run.outcomes] == [0.002 * i for i in range(5)]


async def test_a_limit_on_concurrency_holds_and_its_waiting_counts() -> None:
    async with scripted(wanted=2) as server:
        run = await run_all(server, *[job("together")] * 4, max_concurrency=2)

    assert (run.max_running, server.most_running) == (2, 2)
    waited = run.outcomes[3]
    assert waited.arrival_s == 0
    assert waited.sent_s >= min(outcome.end_s for outcome in run.outcomes[:2])
    assert waited.ttft_s is not None
    assert waited.ttft_s > waited.sent_s


async def test_requests_share_a_connection_one_after_another() -> None:
    async with scripted() as server:
        run = await run_all(server, *[job()] * 3, max_concurrency=1)

    assert run.connections == 1


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async with scripted() as server:
        run = await run_all(server, *[job("leaves")] * 3, max_concurrency=1)

    assert [outcome.error for outcome in run.outcomes] == [None] * 3
    assert run.connections == 3


async def test_a_turn_is_sent_after_the_answer_before_it() -> None:
    async with scripted() as server:
        run = await run_all(server, job("one"), job("two", after=0, think_s=0.01), job("three"))

    assert [body["prompt"] for body in server.bodies] == ["one", "three", "two"]
    first, second, _ = run.outcomes
    assert second.arrival_s >= first.end_s + 0.01


async def test_a_request_says_what_was_asked_for() -> None:
    async with scripted() as server:
        await run_all(server, job([1, 2]), api_key="s3cret", extra={"ignore_eos": True})
        await run_all(server, job("hi"), endpoint="chat", extra={"max_tokens": 9})

    ids, chat = server.bodies
    stream = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert ids == stream | {"prompt": [1, 2], "max_tokens": 4, "ignore_eos": True}
    assert chat == stream | {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    assert server.heads[0].startswith("POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:")
    assert "authorization: Bearer s3cret\r\n" in server.heads[0]
    assert server.heads[1].startswith("POST /v1/chat/completions ")
    assert "authorization" not in server.heads[1]


async def test_the_first_model_of_the_list_is_asked() -> None:
    async with scripted() as server:
        assert await first_model(server.url, "") == "first"
    with pytest.raises(ConfigError, match="does not answer"):
        await first_model(server.url, "")


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://h:8000", ("h", 8000, False, "/v1", "h:8000")),
        ("http://h:8000/v1/", ("h", 8000, False, "/v1", "h:8000")),
        (
            "https://api.example.org/x/v1",
            ("api.example.org", 443, True, "/x/v1", "api.example.org"),
        ),
        ("http://[::1]:80", ("::1", 80, False, "/v1", "[::1]")),
    ],
)
def test_an_address_may_end_with_v1_or_not(url: str, where: tuple[object, ...]) -> None:
    found = parse_address(url)

    assert (found.host, found.port, found.tls, found.path, found.authority) == where


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", "http://h:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--base-url .* is no address"):
        parse_address(url)


def bench(server: ScriptedServer, *options: str) -> Any:
    return CliRunner().invoke(app, ["bench", "serve", "--base-url", server.url, *options])


def test_the_command_tells_figures_and_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    options = ["--rate", "inf", "--requests", "6", "--slo-e2e-ms", "60000", "--seed", "3",
               "--api-key", "s3cret", "--warmup", "2", "--json", str(path)]  # fmt: skip

    with scripted_thread() as server:
        done = bench(server, *options)

    assert done.exit_code == 0, done.output
    assert "6 of 6 requests answered" in done.output
    assert "42 prompt (30 cached), 24 output; 1.33 an event" in done.output
    assert "goodput: 6 of 6 within the SLO" in done.output
    text = path.read_text()
    assert "s3cret" not in text
    document = json.loads(text)
    assert document["figures"]["answered"] == 6
    assert document["figures"]["ttft_s"]["count"] == 6
    assert document["settings"]["rate"] == "inf"
    assert document["settings"]["model"] == "first"
    assert len(document["requests"]) == 6
    assert len(server.bodies) == 2 + 6 + 1, "the warm-up, and the list of models"
    sent = server.bodies[-1]
    assert (sent["temperature"], sent["ignore_eos"]) == (0, True)


def test_failures_are_told_by_kind_and_end_the_command_with_1(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\nbusy\nbroken\nbusy\ncounts\n")

    with scripted_thread() as server:
        done = bench(server, "--prompts", str(prompts), "--requests", "5", "--rate", "inf",
                     "--model", "m", "--warmup", "0")  # fmt: skip

    assert done.exit_code == 1
    assert "2 of 5 requests answered" in done.output
    assert "failed: 2 × http_429: come back later" in done.output
    assert "failed: 1 × http_500: boom" in done.output
    assert "1 answers came without usage" in done.output


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.000000,5,3\n2024-05-10 00:00:01.000000,9,2\n"
    )

    with scripted_thread() as server:
        done = bench(server, "--trace", str(trace), "--speed", "1000", "--endpoint", "completions",
                     "--token-ids", "--model", "m", "--warmup", "0")  # fmt: skip

    assert done.exit_code == 0, done.output
    assert [(len(body["prompt"]), body["max_tokens"]) for body in server.bodies] == [(5, 3), (9, 2)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "say how long: give --requests or --duration"),
        (["--requests", "1", "--arrival", "weibull"], "--arrival weibull is none of"),
        (["--requests", "1", "--rate", "0"], "--rate 0 is not above 0"),
        (["--requests", "1", "--prompt-tokens", "x"], "--prompt-tokens x is no number"),
        (["--requests", "1", "--endpoint", "embed"], "--endpoint embed is none of chat"),
        (["--requests", "1", "--token-ids"], "only --endpoint completions takes"),
        (["--requests", "1", "--body", "[]", "--model", "m"], "--body [] is no JSON object"),
        (["--requests", "1", "--body", "{", "--model", "m"], "--body { is no JSON"),
        (["--trace", "none.jsonl"], "none.jsonl: No such file"),
        (["--trace", "t", "--duration", "3"], "--trace has prompts and times of its own"),
        (["--trace", "t", "--speed", "0"], "--speed 0 is not above 0"),
        (["--duration", "0.001", "--rate", "0.001"], "no request arrives in --duration 0.001"),
        (["--requests", "1", "--base-url", "h:1"], "--base-url h:1 is no address"),
        (["--requests", "1", "--base-url", "http://127.0.0.1:1"], "does not answer"),
        (
            ["--requests", "1", "--base-url", "http://127.0.0.1:1", "--model", "m"],
            "answers no request of the warm-up: connect",
        ),
    ],
)
def test_what_cannot_work_is_one_line(
    options: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["kokuban", "bench", "serve", *options])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert text in line


async def test_a_burst_of_64_is_answered_whole() -> None:
    async with scripted() as server:
        run = await asyncio.wait_for(run_all(server, *[job()] * 64), 30)

    assert [len(outcome.text_s) for outcome in run.outcomes] == [3] * 64
