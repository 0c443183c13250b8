"""The command: help at once, one line for what the operator did wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kokuban import __version__
from kokuban.bench.stats import over_rounds
from kokuban.cli import app, main
from kokuban.cli.bench import cell, sizes
from kokuban.cli.options import EngineOptions
from kokuban.cli.serve import describe
from kokuban.core.errors import ConfigError
from kokuban.engine.client import EngineInfo


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_version_is_told() -> None:
    assert run("--version") == (0, f"kokuban {__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["run"],
        ["chat"],
        ["pull"],
        ["inspect"],
        ["models"],
        ["bench", "latency"],
        ["bench", "throughput"],
        ["bench", "serve"],
        ["bench", "kernels"],
        ["bench", "machine"],
        ["bench", "kv-quant"],
    ],
)
def test_every_command_explains_itself(command: list[str]) -> None:
    code, output = run(*command, "--help")

    assert code == 0
    assert "Usage" in output


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from kokuban.cli import app\n"
        "heavy = {'numpy', 'starlette', 'pydantic', 'tokenizers', 'uvicorn', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")},
    )  # fmt: skip

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "m", "--block-size", "12"], "block_size=12 is none of 16, 32, 64, 128"),
        (
            ["serve", "m", "--kv-dtype", "int3"],
            "kv_dtype=int3 is none of bf16, fp16, fp32, int8, fp8_e4m3",
        ),
        (["serve", "m", "--kv-memory", "lots"], "'lots' is no size"),
        (["serve", "m", "--quantize", "int2"], "quantize=int2 is none of none, int8, int4"),
        (["serve", "m", "--host", "0.0.0.0"], "add --api-key KEY, or --no-auth"),
        (["serve", "m", "--port", "70000"], "port=70000 is not between 0 and 65535"),
        (["bench", "latency", "m", "--batch", "1,x"], "batch=1,x is no list of numbers"),
        (["bench", "kv-quant", "m"], "perplexity needs a text: give a file with --text"),
        (["bench", "kv-quant", "m", "--text", "none.txt"], "--text none.txt cannot be read"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_and_exit_code_2(
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = [] if "--port" in arguments or arguments[0] != "serve" else ["--port", "0"]
    monkeypatch.setattr(sys, "argv", ["kokuban", *arguments, *port])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kokuban: ")
    assert text in lines[0]


def test_a_small_budget_needs_no_second_option() -> None:
    assert EngineOptions(model="m", token_budget=8).scheduler().max_running_requests == 8
    assert EngineOptions(model="m").scheduler().max_running_requests == 256
    with pytest.raises(ConfigError):
        EngineOptions(model="m", token_budget=8, max_running_requests=9).scheduler()


def test_the_prefix_cache_is_on_unless_it_is_switched_off() -> None:
    assert EngineOptions(model="m").scheduler().prefix_cache
    assert not EngineOptions(model="m", no_prefix_cache=True).scheduler().prefix_cache
    assert "--no-prefix-cache" in run("serve", "--help")[1]


def test_sizes_of_memory_become_bytes() -> None:
    assert EngineOptions(model="m", kv_memory="1.5MiB").runtime().kv_memory_bytes == 1_572_864
    assert EngineOptions(model="m").runtime().kv_memory_bytes is None


def test_the_start_tells_what_the_pool_holds() -> None:
    info = EngineInfo(
        model="smollm2",
        vocab_size=49_152,
        max_context_tokens=8192,
        block_size=16,
        num_blocks=4096,
        bytes_per_token=23_040,
        kv_pool_bytes=1_509_949_440,
        num_kv_tokens=65_536,
        requests_at_full_length=8,
        kv_dtype="bf16",
        threads=2,
        isa="avx512vnni",
        token_budget=2048,
    )

    assert describe(info) == (
        "smollm2: 2 threads, avx512vnni, context 8,192 tokens\n"
        "KV pool: 1,440 MiB = 4,096 blocks of 16 = 65,536 tokens of 23,040 bytes (bf16); "
        "8 requests at full length"
    )


def test_a_figure_is_told_as_its_median_with_its_spread() -> None:
    assert cell(over_rounds([0.002, 0.004, 0.003]), 1e3, 1) == "3.0 ±67%"
    assert cell(over_rounds([1234.4, 1234.4]), 1, 0) == "1,234 ±0%"
    assert cell(None, 1, 0) == "-"


def test_batch_sizes_are_read_from_a_list() -> None:
    assert sizes("1, 2,16") == [1, 2, 16]
