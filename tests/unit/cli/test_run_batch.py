"""`kokuban run-batch` on a tiny model: files, exit codes, and what is refused at once."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tools.make_tiny_models import write_tiny_model

from kokuban.cli import app
from kokuban.cli.run_batch import _until_signal
from kokuban.core.errors import ConfigError


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["run-batch", *map(str, arguments)])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    return result.exit_code, result.output


def line(name: str, **fields: Any) -> str:
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0, **fields}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})


def test_a_file_is_answered_and_goes_on_where_it_was(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    options = ("--model", model, "--served-model-name", "m", "--threads", 1)
    requests.write_text("\n".join([line("a"), line("b")]))

    code, output = run(requests, results, *options, "--kv-memory", "1MiB")

    assert code == 0
    assert f"2 of 2 requests have a result in {results}, 0 of them no success" in output
    first = results.read_text().splitlines()
    requests.write_text("\n".join([line("a"), line("c", model="no"), line("b")]))

    code, output = run(requests, results, *options, "--kv-memory", "1MiB")

    assert code == 1
    assert "3 of 3 requests have a result" in output
    assert "1 of them no success" in output
    assert results.read_text().splitlines()[:2] == first
    assert json.loads(results.read_text().splitlines()[2])["response"]["status_code"] == 404

    # Nothing is left to do: no model is opened.
    assert run(requests, results, "--model", tmp_path / "none.gguf")[0] == 1


@pytest.mark.parametrize(
    ("requests", "results", "message"),
    [
        ([line("a"), line("b"), line("a")], [], "the custom_id 'a' of line 3 is that of line 1"),
        ([line("a")], ['{"custom_id": "z", "response": null}'], "belongs to another batch"),
        ([line("a")], ["x"], "something else than results in line 1"),
        (None, [], "is no file"),
    ],
)
def test_files_that_do_not_belong_together_are_refused_before_a_model_is_read(
    requests: list[str] | None, results: list[str], message: str, tmp_path: Path
) -> None:
    if requests is not None:
        (tmp_path / "in").write_text("\n".join(requests))
    (tmp_path / "out").write_text("".join(f"{each}\n" for each in results))

    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "in", tmp_path / "out", "--model", tmp_path / "none.gguf", "--retry-failed")

    assert (tmp_path / "out").read_text().splitlines() == results


def test_the_requests_are_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "in").write_text(line("a") + "\n")
    (tmp_path / "link").symlink_to("in")

    for name in ("in", "link"):
        with pytest.raises(ConfigError, match="holds the requests"):
            run(tmp_path / "in", tmp_path / name, "--model", tmp_path / "none.gguf")

    assert (tmp_path / "in").read_text() == line("a") + "\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_work_in_order(number: signal.Signals, code: int) -> None:
    ended: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    assert asyncio.run(_until_signal(work())) == code
    assert ended == ["in order"]
