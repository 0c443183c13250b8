"""Each format of trace becomes the same few facts; what is wrong is told with file and line."""

import json
from pathlib import Path

import pytest

from kokuban.core.errors import ConfigError
from kokuban.simulate.readers import read_trace
from kokuban.simulate.trace import TraceRequest, make_trace


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def test_mooncake_has_milliseconds_and_blocks_of_512(tmp_path: Path) -> None:
    trace = read_trace(
        write(
            tmp_path / "m.jsonl",
            {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]},
            {"timestamp": 0, "input_length": 3, "output_length": 0, "hash_ids": [9]},
        )
    )

    assert (trace.name, trace.block_tokens) == ("m.jsonl", 512)
    assert trace.requests == (
        TraceRequest(arrival_s=0.0, prompt_tokens=3, output_tokens=1, block_ids=(9,)),
        TraceRequest(arrival_s=1.5, prompt_tokens=600, output_tokens=7, block_ids=(0, 5)),
    )


def test_azure_has_wall_time_and_no_names(tmp_path: Path) -> None:
    trace = read_trace(
        write(
            tmp_path / "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:15:46.6805900,374,44",
            "2023-11-16 18:16:50.6805901,1,0",
        )
    )

    assert trace.requests == (
        TraceRequest(arrival_s=0.0, prompt_tokens=374, output_tokens=44),
        TraceRequest(arrival_s=64.0, prompt_tokens=1, output_tokens=1),
    )
    assert (trace.num_blocks, trace.num_prompt_tokens, trace.max_tokens) == (0, 375, 418)


AGENT = {
    "id": "s1",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 130, "out": 9, "hash_ids": [1, 2], "think_time": 0.0},
        {"t": 8.5, "in": 200, "out": 3, "hash_ids": [1, 2, 3], "think_time": 2.5},
        {"t": 9.5, "in": 201, "out": 3, "hash_ids": [1, 2, 3]},
    ],
}


def test_the_turns_of_an_agent_are_one_session_with_names_of_its_own(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.json", AGENT))

    assert trace.block_tokens == 64
    assert [r.think_s for r in trace.requests] == [0.0, 2.5, 0.0]
    assert {(r.session, r.scope) for r in trace.requests} == {("s1", "s1")}
    assert trace.requests[1].block_ids == (1, 2, 3)


def test_a_folder_of_agents_is_one_trace(tmp_path: Path) -> None:
    write(tmp_path / "a.json", AGENT)
    write(tmp_path / "b.json", AGENT | {"id": "s2"})

    trace = read_trace(tmp_path)

    assert len(trace.requests) == 6
    assert (trace.num_blocks, trace.num_unique_blocks) == (16, 6)
    assert [r.session for r in trace.requests] == ["s1", "s2"] * 3


def test_our_own_format_has_sessions_and_hashed_names(tmp_path: Path) -> None:
    turn = {"arrival_s": 1, "prompt_tokens": 40, "output_tokens": 5, "block_ids": ["ab", "c0"]}
    trace = read_trace(
        write(
            tmp_path / "own.jsonl",
            {"kokuban_trace": 1, "block_tokens": 16},
            turn,
            "",
            turn | {"block_ids": ["ab", "ff"], "session": "s", "think_s": 3, "scope": "t"},
        )
    )

    assert trace.block_tokens == 16
    assert trace.requests == (
        TraceRequest(arrival_s=1.0, prompt_tokens=40, output_tokens=5, block_ids=(0, 1)),
        TraceRequest(
            arrival_s=1.0,
            prompt_tokens=40,
            output_tokens=5,
            block_ids=(0, 2),
            session="s",
            scope="t",
            think_s=3.0,
        ),
    )


MOONCAKE = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}
OWN = {"kokuban_trace": 1, "block_tokens": 16}
LINE = {"arrival_s": 0, "prompt_tokens": 3, "output_tokens": 1}


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        ("m.jsonl", [MOONCAKE, "{"], r"m\.jsonl:2 is no JSON"),
        ("m.jsonl", [MOONCAKE, "[]"], r"m\.jsonl:2 is no JSON object"),
        ("m.jsonl", [MOONCAKE, {"hash_ids": []}], r":2: timestamp=None is no number"),
        (
            "m.jsonl",
            [MOONCAKE | {"input_length": 0}],
            r":1: input_length=0 is no whole number of 1",
        ),
        ("m.jsonl", [MOONCAKE | {"input_length": 2.5}], r"input_length=2\.5 is no whole number"),
        ("m.jsonl", [MOONCAKE | {"output_length": -1}], r"output_length=-1 is no whole number"),
        ("m.jsonl", [MOONCAKE | {"timestamp": True}], r"timestamp=True is no number"),
        ("m.jsonl", [MOONCAKE | {"hash_ids": ["a"]}], r":1: hash_ids is no list of whole numbers"),
        ("x.jsonl", [{"a": 1}], r"none of the traces that can be read: Mooncake JSONL"),
        ("x.jsonl", [""], r"x\.jsonl:1 is no JSON"),
        ("a.csv", ["TIMESTAMP,Other", "2023-11-16 18:15:46.6,1"], r"a\.csv:2 is no row"),
        ("a.csv", ["TIMESTAMP,ContextTokens,GeneratedTokens", "noon,1,2"], r"a\.csv:2 is no row"),
        ("a.csv", ["TIMESTAMP,ContextTokens,GeneratedTokens"], r"holds no request"),
        ("s.json", [{"a": 1}], r"block_size=None is no whole number"),
        ("s.json", [{"block_size": 64, "requests": 5}], r"none of the traces"),
        ("s.json", [{"block_size": 64, "requests": [7]}], r"request 0 is no object"),
        ("o.jsonl", [OWN | {"kokuban_trace": 9}, LINE], r"has version 9 of our format, not 1"),
        ("o.jsonl", [OWN, LINE | {"block_ids": [1]}], r":2: block_ids is no list of texts"),
        ("o.jsonl", [OWN | {"block_tokens": 0}, LINE], r":1: block_tokens=0"),
        ("o.jsonl", [OWN], r"holds no request"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, name: str, lines: list[object], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_trace(write(tmp_path / name, *lines))


def test_what_cannot_be_read_is_an_error_of_the_operator(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match=r"holds no \.json file"):
        read_trace(tmp_path)
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no trace"):
        read_trace(tmp_path / "bytes.jsonl")


def test_agents_with_other_block_sizes_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path / "a.json", AGENT)
    write(tmp_path / "b.json", AGENT | {"block_size": 32})

    with pytest.raises(ConfigError, match="has blocks of 32 tokens, others of 64"):
        read_trace(tmp_path)


def test_a_trace_can_be_cut_and_sped_up() -> None:
    lines = [TraceRequest(arrival_s=t, prompt_tokens=5, output_tokens=1) for t in (8.0, 2.0, 4.0)]
    trace = make_trace("t", 1, lines)

    assert [r.arrival_s for r in trace.first(2).at_rate(2).requests] == [1.0, 2.0]
    assert trace.first(0) == trace
