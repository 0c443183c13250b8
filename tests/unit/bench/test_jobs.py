"""Prompts: random ones under a seed, those of a file, those of a trace."""

import json
import random
from pathlib import Path

import pytest

from kokuban.bench.jobs import (
    FIRST_TOKEN_ID,
    NUM_TOKEN_IDS,
    Lengths,
    file_jobs,
    parse_lengths,
    random_jobs,
    trace_jobs,
)
from kokuban.core.errors import ConfigError


def test_lengths_are_a_number_or_a_range() -> None:
    assert parse_lengths("--x", "128") == Lengths(128, 128)
    assert parse_lengths("--x", "16:256") == Lengths(16, 256)


@pytest.mark.parametrize("text", ["", "0", "5:4", "1:2:3", "a", "-1", "1.5"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--x .* is no number of tokens"):
        parse_lengths("--x", text)


def test_random_jobs_have_as_many_words_as_tokens_and_follow_the_seed() -> None:
    def made(seed: int, *, token_ids: bool = False) -> list[object]:
        draw = random.Random(seed)
        jobs = random_jobs([0.5, 1.5], Lengths(3, 9), Lengths(2, 4), token_ids=token_ids, draw=draw)
        assert [job.arrival_s for job in jobs] == [0.5, 1.5]
        assert all(2 <= job.max_tokens <= 4 for job in jobs)
        return [job.prompt for job in jobs]

    words, ids = made(1), made(1, token_ids=True)
    assert made(1) == words != made(2)
    for text, numbers in zip(words, ids, strict=True):
        assert isinstance(text, str)
        assert isinstance(numbers, list)
        assert 3 <= len(text.split()) == len(numbers) <= 9
        assert all(FIRST_TOKEN_ID <= id_ < FIRST_TOKEN_ID + NUM_TOKEN_IDS for id_ in numbers)


def test_prompts_of_a_file_are_taken_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "one", "max_tokens": 7}, {"messages": [{"role": "user", "content": "two"}]}]
    path.write_text("\n\n".join(map(json.dumps, rows)))

    jobs = file_jobs(path, [0.0, 1.0, 2.0], Lengths(5, 5), draw=random.Random(1))

    assert [job.prompt for job in jobs] == ["one", rows[1]["messages"], "one"]
    assert [job.max_tokens for job in jobs] == [7, 5, 7]


def test_a_line_separator_inside_a_prompt_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\r\n{"prompt": "\\ud83d\\ude00"}\n')

    jobs = file_jobs(path, [0.0, 1.0], Lengths(5, 5), draw=random.Random(1))

    assert [job.prompt for job in jobs] == ["a\u2028b", "😀"]


def test_each_line_of_a_text_file_is_a_prompt(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\nsecond {}\n")

    jobs = file_jobs(path, [0.0, 1.0], Lengths(5, 5), draw=random.Random(1))

    assert [job.prompt for job in jobs] == ["first", "second {}"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no prompt"),
        ("{", ":1 is no JSON"),
        ('{"text": "x"}', ":1 has neither prompt nor messages"),
        ('{"prompt": "x"}\n{"prompt": ""}', ":2 has neither prompt nor messages"),
        ('{"prompt": "x", "max_tokens": 0}', ":1: max_tokens=0 is no number above 0"),
        ('{"prompt": "x"}\n{"prompt": "\\ud83d"}', ":2 holds half of a surrogate pair"),
        ("[" * 100_000, ":1 is no JSON"),
    ],
)
def test_a_wrong_file_is_told_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    """Keeps B24 out: docs/bugbank.md."""
    path = tmp_path / "p.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=problem):
        file_jobs(path, [0.0], Lengths(1, 1), draw=random.Random(1))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        file_jobs(tmp_path / "none.txt", [0.0], Lengths(1, 1), draw=random.Random(1))


def mooncake(path: Path, rows: list[tuple[int, int, int, list[int]]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    return path


def test_a_trace_gives_times_lengths_and_equal_text_for_equal_blocks(tmp_path: Path) -> None:
    rows = [(1000, 1024, 5, [0, 1]), (3000, 1030, 6, [0, 1, 2]), (4000, 512, 7, [3])]
    path = mooncake(tmp_path / "t.jsonl", rows)

    jobs = trace_jobs(path, limit=0, speed=2, token_ids=True)

    assert [job.arrival_s for job in jobs] == [0, 1, 1.5]
    assert [job.max_tokens for job in jobs] == [5, 6, 7]
    assert [len(job.prompt) for job in jobs] == [1024, 1030, 512]
    assert jobs[0].prompt == jobs[1].prompt[:1024]
    assert len(trace_jobs(path, limit=2, speed=1, token_ids=False)) == 2


def test_no_two_blocks_of_a_trace_become_the_same_text(tmp_path: Path) -> None:
    """A remainder of the token's number would repeat: runs of 512 are alike after some blocks."""
    # Names are numbered as they come: the first request, of one token, brings all of them.
    apart = [0, *range(1, 40), 625]
    rows = [(0, 1, 1, list(range(626))), *((1, 512, 1, [block]) for block in apart)]
    path = mooncake(tmp_path / "t.jsonl", rows)

    for token_ids in (False, True):
        jobs = trace_jobs(path, limit=0, speed=1, token_ids=token_ids)
        assert len({str(job.prompt) for job in jobs[1:]}) == len(apart)


def test_a_turn_of_a_session_waits_for_the_one_before(tmp_path: Path) -> None:
    turn = {"t": 0.0, "in": 64, "out": 3, "hash_ids": [1]}
    later = {"t": 9.0, "in": 128, "out": 3, "hash_ids": [1, 2], "think_time": 4.0}
    path = tmp_path / "agent.json"
    path.write_text(json.dumps({"id": "a", "block_size": 64, "requests": [turn, later]}))

    jobs = trace_jobs(path, limit=0, speed=2, token_ids=False)

    assert [(job.after, job.think_s) for job in jobs] == [(None, 0), (0, 2)]
    assert isinstance(jobs[0].prompt, str)
    assert str(jobs[1].prompt).startswith(jobs[0].prompt)
