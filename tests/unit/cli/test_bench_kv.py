"""`kokuban bench kv-quant` prints a row for each dtype and writes the same figures as JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.make_tiny_models import write_tiny_model

from kokuban.cli import app


def test_each_dtype_has_a_row_and_the_file_has_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    model = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")
    text, out = tmp_path / "text.txt", tmp_path / "out.json"
    text.write_text("Some words that are said again and again. " * 20)
    small = "--tokens 64 --window 32 --prompts 2 --context 64 --batch 2 --rounds 2 --threads 1"
    files = ["--text", str(text), "--json", str(out), "--kv-dtypes", "int8, fp8_e4m3"]

    result = CliRunner().invoke(app, ["bench", "kv-quant", str(model), *small.split(), *files])

    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert found["context"] == 64
    rows = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    assert [each["dtype"] for each in found["figures"]] == ["bf16", "int8", "fp8_e4m3"]
    base = found["figures"][0]
    for each in found["figures"]:
        row = rows[each["dtype"]]
        assert row[1] == f"{each['bytes_per_token']:,}"
        assert row[2] == f"{each['bytes_per_token'] / base['bytes_per_token']:.1%}"
        assert row[3] == f"{each['perplexity']:.4f}"
        assert row[4] == f"{each['perplexity'] / base['perplexity'] - 1:+.2%}"
        assert row[5:7] == ["±", f"{each['change_error']:.2%}"]
        assert row[-1] == f"{each['speedup']:.2f}x"
