"""Options of `kokuban bench` that cannot work are one line, before anything is measured."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kokuban.bench.connection import check_api_key, first_model
from kokuban.cli import main
from kokuban.cli.options import check_json
from kokuban.core.errors import ConfigError

Refused = Callable[..., str]

NOWHERE = ["--requests", "1", "--base-url", "http://127.0.0.1:1", "--model", "m"]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must end with exit code 2, and gives its one line."""

    def run(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["kokuban", "bench", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        return line

    return run


@pytest.mark.parametrize("command", ["kernels", "machine", "latency", "throughput", "kv-quant"])
@pytest.mark.parametrize("threads", ["-3", "513"])
def test_a_number_of_threads_that_no_machine_has(
    command: str, threads: str, refused: Refused
) -> None:
    assert refused(command, "--threads", threads) == (
        f"kokuban: threads={threads} is not between 0 and 512; 0 takes the CPUs of this process"
    )


@pytest.mark.parametrize(
    "command", ["kernels", "machine", "latency", "throughput", "serve", "kv-quant"]
)
def test_a_file_that_cannot_be_written_is_refused_first(
    command: str, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "none" / "x.json"

    assert refused(command, "--json", str(path)) == (
        f"kokuban: --json {path} cannot be written: there is no {path.parent}; name a file in a "
        f"directory that can be written"
    )


def test_a_file_that_can_be_written_is_not_touched(tmp_path: Path) -> None:
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("old")
    link.symlink_to(new)

    assert [check_json(path) for path in (None, old, new, link)] == [None, old, new, link]
    assert (old.read_text(), new.exists()) == ("old", False)
    assert check_json(Path(os.devnull)) == Path(os.devnull)


def test_files_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "none" / "x.json")
    for path, reason in (
        (tmp_path, "is a directory; name a file in it"),
        (file / "x.json", "Not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
        (link, "there is no"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_json(path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (file, tmp_path / "new"):
        with pytest.raises(ConfigError, match="no permission"):
            check_json(path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--api-key", "ab😀"], "--api-key has U+1F600 as character 3 of 3, and a header"),
        (["--api-key", "ab\r\nx-evil: 1"], "--api-key has U+000D as character 3 of 13"),
        (["--api-key", "ab\x7f"], "--api-key has U+007F as character 3 of 3"),
        (["--model", "\udcff"], r"--model '\udcff' cannot be sent"),
        (["--body", '{"x": "\\ud800"}'], r"--body {'x': '\ud800'} cannot be sent"),
        (["--body", '{"x": NaN}'], "is no JSON: NaN is no number"),
        (["--base-url", "http://h/😀"], r"--base-url 'http://h/\U0001f600' is not all ASCII"),
        (["--base-url", "http://a..b"], "--base-url http://a..b has no valid host"),
        (["--prompt-tokens", "99999999999"], "--prompt-tokens 99999999999 is above 1,048,576"),
        (["--prompt-tokens", "9" * 5000], "is above 1,048,576 tokens; give fewer"),
        (["--output-tokens", "1:1048577"], "--output-tokens 1:1048577 is above 1,048,576 tokens"),
        (["--requests", "1000001"], "--requests 1000001 is above 1,000,000; give fewer"),
        (["--warmup", "1000001"], "--warmup 1000001 is above 1,000,000; give fewer"),
        (["--rate", "nan"], "--rate nan is not above 0"),
        (["--rate", "1e7"], "--rate 1e+07 is not between 1e-06 and 1e+06 requests a second; inf"),
        (["--rate", "1e-300"], "--rate 1e-300 is not between 1e-06 and 1e+06"),
        (["--duration", "nan"], "--duration nan is not between 0 and 2,592,000 seconds"),
        (["--duration", "inf"], "--duration inf is not between 0 and 2,592,000 seconds"),
        (["--timeout", "nan"], "--timeout nan is not between 0.001 and 2,592,000 seconds"),
        (["--temperature", "nan"], "--temperature nan is no number from 0 up"),
        (["--temperature", "inf"], "--temperature inf is no number from 0 up"),
        (["--temperature", "-1"], "--temperature -1 is no number from 0 up"),
        (["--slo-ttft-ms", "nan"], "--slo-ttft-ms nan is no number of milliseconds above 0"),
        (["--slo-tpot-ms", "inf"], "--slo-tpot-ms inf is no number of milliseconds above 0"),
        (["--slo-e2e-ms", "-5"], "--slo-e2e-ms -5 is no number of milliseconds above 0; leave it"),
    ],
)
def test_what_no_request_can_be(options: list[str], text: str, refused: Refused) -> None:
    assert text in refused("serve", *NOWHERE, *options)


async def test_a_key_that_cannot_be_sent_is_not_told_as_a_list_without_models() -> None:
    with pytest.raises(ConfigError, match=r"--api-key has U\+1F600 as character 1 of 1"):
        await first_model("http://127.0.0.1:1", "😀")
    with pytest.raises(ConfigError) as found:
        check_api_key("s3cret\n")
    assert "s3cret" not in str(found.value)
    check_api_key("sk-A_b~ 9!")
