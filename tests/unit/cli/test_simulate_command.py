"""The command on a trace of our own: rows, JSON, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kokuban.cli import app, main

HEAD = {"kokuban_trace": 1, "block_tokens": 16}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four prompts of three blocks, the first two in common, and short answers."""
    lines = [
        {
            "arrival_s": place * 100,
            "prompt_tokens": 48,
            "output_tokens": 3,
            "block_ids": ["a", "b", f"own {place}"],
        }
        for place in range(4)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (HEAD, *lines)))
    return path


def results(*arguments: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["simulate", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return found


def test_policy_mode_has_a_row_for_each_policy_and_capacity(trace: Path) -> None:
    rows = results(trace, "--mode", "policy", "--capacity", "2,3,0", "--policy", "lru,cost")

    assert [(row["policy"], row["capacity_blocks"]) for row in rows] == [
        (policy, capacity) for policy in ("lru", "cost") for capacity in (2, 3, 6)
    ]
    assert [row["hit_rate"] for row in rows[:3]] == [0.0, 0.5, 0.5]
    assert [row["hit_rate"] for row in rows[3:]] == [0.5, 0.5, 0.5]


def test_real_mode_counts_what_the_engine_does(trace: Path) -> None:
    [row] = results(trace, "--capacity", "64")

    assert (row["num_requests"], row["num_blocks"]) == (4, 64)
    assert row["hit_rate"] == round(3 * 32 / 192, 6)
    assert row["computed_tokens"] == (48 + 2) + 3 * (16 + 2)
    assert set(row["ttft_s"]) == {"p50", "p90", "p99"}


def test_rules_mode_has_a_row_for_each_capacity_and_rule(trace: Path) -> None:
    rows = results(trace, "--mode", "rules", "--capacity", "5,12")

    assert [row["capacity_blocks"] for row in rows] == [5] * 8 + [12] * 8
    assert [row["rule"] for row in rows[:3]] == ["block", "token", "tail-first"]
    assert (rows[0]["hit_rate"], rows[0]["change"]) == (0.5, 0.0)
    assert [row["hits"] for row in rows[:2]] == [6, 96]


def test_agents_can_be_made_up() -> None:
    """Three agents of two turns in a pool for one of them."""
    agents = "agents:3,turns=2,system=100,new=20,answer=10,every_s=0.2"
    small = ("--capacity", "12", "--model", "llama-8b", "--machine", "h100")
    rows = results(agents, "--mode", "pauses", "--kv-ram", "1GiB", *small)
    [real] = results(agents, *small)

    assert [(row["kv_ram"], row["paused"]) for row in rows] == [
        ("no", "never"),
        ("no", "told"),
        ("yes", "never"),
        ("yes", "told"),
        ("yes", "learned"),
    ]
    assert [row["prefill_tokens"] for row in rows[2:]] == [3 * (120 + 21)] * 3
    assert rows[0]["prefill_tokens"] > 3 * (120 + 21)
    assert rows[0]["prefill_tokens"] == real["prompt_tokens"] - real["cached_tokens"]
    assert [row["needless_tokens"] for row in rows] == [0] * 5
    assert sum(rows[3]["resumed_from"].values()) == 3


def test_memory_becomes_blocks(trace: Path) -> None:
    """A token of smollm2 is 23,040 bytes in bf16."""
    [narrow] = results(trace, "--kv-memory", "64MiB")
    [wide] = results(trace, "--kv-memory", "64MiB", "--kv-dtype", "fp32")

    assert narrow["num_blocks"] == 2**26 // (16 * 23_040)
    assert wide["num_blocks"] == 2**26 // (16 * 46_080)


def test_contiguous_mode_sets_pages_beside_reservations(trace: Path) -> None:
    rows = results(trace, "--mode", "contiguous", "--capacity", "64")

    assert [row["reservation"] for row in rows] == [
        "pages of 16",
        "maximum",
        "power-of-two",
        "oracle",
    ]
    # 49, 50 and 51 tokens: in four pages, in 51 slots, in 52, in 50.
    wastes = [1 - 150 / 192, 1 - 150 / 153, 1 - 150 / 156, 0.0]
    assert [row["waste_decoding"] for row in rows] == pytest.approx(wastes, abs=1e-6)


def test_arrivals_can_be_sped_up_and_cut(trace: Path) -> None:
    [row] = results(trace, "--rate", "100", "--limit", "3", "--machine", "h100")

    assert row["num_requests"] == 3
    assert 2.0 < row["duration_s"] < 2.1


def test_people_get_tables(trace: Path) -> None:
    policy = CliRunner().invoke(app, ["simulate", str(trace), "--mode", "policy"]).output
    real = CliRunner().invoke(app, ["simulate", str(trace)]).output

    assert "4 requests, 192 prompt" in " ".join(policy.split())
    assert "hit_rate" in policy
    assert "ttft_s_p99" in real


def test_counts_in_a_table_are_told_with_their_names() -> None:
    agents = "agents:2,turns=2,system=100,every_s=0.2"
    options = ["--mode", "pauses", "--kv-ram", "1GiB", "--machine", "h100"]

    done = CliRunner().invoke(app, ["simulate", agents, *options], env={"COLUMNS": "250"})

    assert "pool 2" in done.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--mode", "dream"], "mode=dream is none of policy, real, contiguous, rules, pauses"),
        (["--mode", "rules"], "a --capacity of so many blocks of the trace"),
        (["--mode", "rules", "--capacity", "9,0"], "not for capacity=9,0, policy=lru"),
        (["--mode", "rules", "--capacity", "9", "--policy", "cost"], "policy=cost"),
        (["--mode", "pauses"], "give --kv-ram and a trace with sessions"),
        (["--mode", "pauses", "--kv-ram", "1GiB"], "not trace.jsonl with kv_ram=1GiB"),
        (["--policy", "lru,mru"], "policy=mru is none of lru, cost"),
        (["--capacity", "many"], "capacity=many is no list of numbers"),
        (["--capacity", "1,2"], "capacity=1,2: this mode takes one number"),
        (["--capacity", "0"], "capacity=0: this mode takes one number"),
        (["--machine", "moon"], "machine=moon is none of here, h100"),
        (["--kv-dtype", "int3"], "kv_dtype=int3 is none of bf16"),
        (["--block-size", "12"], "block_size=12 is none of 16"),
        (["--kv-memory", "1k"], "the KV memory of 1000 bytes holds 0 blocks"),
    ],
)
def test_what_cannot_be_simulated_is_one_line_and_exit_code_2(
    trace: Path,
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["kokuban", "simulate", str(trace), *arguments])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_a_trace_without_names_has_no_policy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,3,4\n")

    done = CliRunner().invoke(app, ["simulate", str(path), "--mode", "policy"])

    assert "names no blocks" in str(done.exception)


def test_sessions_are_not_compared_with_reservations(trace: Path) -> None:
    line = {"arrival_s": 0, "prompt_tokens": 4, "output_tokens": 1, "session": "s"}
    trace.write_text("\n".join(map(json.dumps, (HEAD, line))))

    done = CliRunner().invoke(app, ["simulate", str(trace), "--mode", "contiguous"])

    assert "has sessions" in str(done.exception)
