"""The two files of a batch: read in pieces, written a line at a time, repaired, never mixed up."""

import json
from pathlib import Path

import pytest
from tests.server.asgi import Json

from kokuban.core.errors import ConfigError
from kokuban.server.batch.lines import BatchError, BatchResponse, BatchResult
from kokuban.server.batch.sink import Sink
from kokuban.server.batch.source import Source


def named(*names: str) -> bytes:
    return b"".join(json.dumps({"custom_id": name}).encode() + b"\n" for name in names)


def source(path: Path, content: bytes, limit: int = 1000) -> Source:
    path.write_bytes(content)
    return Source(path, limit)


def test_blank_lines_count_for_the_numbers_only(tmp_path: Path) -> None:
    found = source(tmp_path / "in", b"\xef\xbb\xbfa\n\n  \r\n b \r\nc")

    assert list(found.lines()) == [(1, b"a"), (4, b"b"), (5, b"c")]


@pytest.mark.parametrize("length", [9, 10, 11, 12, 25, 3_000_000])
def test_a_line_that_is_too_long_is_not_read(tmp_path: Path, length: int) -> None:
    found = source(tmp_path / "in", b"x" * length + b"\ny\n" + b"z" * length, limit=10)

    long = None if length > 10 else b"x" * length
    last = None if length > 10 else b"z" * length
    assert list(found.lines()) == [(1, long), (2, b"y"), (3, last)]


def test_a_scan_counts_and_refuses_a_name_that_stands_twice(tmp_path: Path) -> None:
    assert source(tmp_path / "in", named("a", "b") + b"{\n{\n").scan().num_lines == 4

    with pytest.raises(ConfigError) as caught:
        source(tmp_path / "in", named("a", "b") + b"\n" + named("a")).scan()

    assert "the custom_id 'a' of line 4 is that of line 1 already" in str(caught.value)


def test_an_input_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no file"):
        Source(tmp_path, 10).scan()
    with pytest.raises(ConfigError, match="is no file"):
        Source(tmp_path / "missing", 10).scan()


def good(name: str, status: int = 200) -> BatchResult:
    import msgspec

    response = BatchResponse(status, "r", msgspec.Raw(b"{}"))
    return BatchResult(id="i", custom_id=name, response=response)


def nameless(number: int) -> BatchResult:
    return BatchResult(id="i", custom_id=None, error=BatchError(code="c", message="m", line=number))


def results(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_result_is_in_the_file_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Sink(path) as sink:
        sink.append(good("a"))
        assert results(path) == [
            {
                "id": "i",
                "custom_id": "a",
                "response": {"status_code": 200, "request_id": "r", "body": {}},
                "error": None,
            }
        ]


def test_what_is_in_the_file_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Sink(path) as sink:
        for result in (good("a"), good("b", 400), nameless(7)):
            sink.append(result)
        first = (sink.num_done, sink.num_failed)
    with Sink(path) as sink:
        again = (sink.num_done, sink.num_failed)
        known = [sink.has(*line) for line in (("a", 1), ("b", 2), ("c", 7), (None, 7), (None, 8))]

    assert first == again == (3, 2)
    assert known == [True, True, False, True, False]


@pytest.mark.parametrize(
    "half", [b"{", b'{"id": "i", "custom_id": "z"}', b"\0" * 100, b"x" * 3_000_000]
)
def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path, half: bytes) -> None:
    path = tmp_path / "out"
    with Sink(path) as sink:
        sink.append(good("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + half)

    with Sink(path) as sink:
        assert sink.num_done == 1
        sink.append(good("b"))

    assert [result["custom_id"] for result in results(path)] == ["a", "b"]
    path.write_bytes(half)
    with Sink(path) as sink:
        assert sink.num_done == 0
    assert path.read_bytes() == b""


def test_failures_can_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Sink(path) as sink:
        for result in (good("a"), good("b", 500), nameless(7), good("c")):
            sink.append(result)
    with Sink(path) as sink:
        sink.drop_failed()
        assert (sink.num_done, sink.num_failed) == (2, 0)
        sink.append(good("b"))

    assert [result["custom_id"] for result in results(path)] == ["a", "c", "b"]
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_something_else_is_never_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("my diary\n")

    with pytest.raises(ConfigError, match="something else than results in line 1"):
        Sink(path)

    assert path.read_text() == "my diary\n"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_two_runs_never_share_an_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Sink(path) as sink:
        for _ in range(2):
            with pytest.raises(ConfigError, match="is being written by another run"):
                Sink(path)
            sink.append(good("a"))
            sink.drop_failed()  # The lock goes over to the new file.


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Sink(tmp_path)
    with pytest.raises(ConfigError, match="cannot be written"):
        Sink(tmp_path / "no" / "out")
