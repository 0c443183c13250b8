"""`kokuban bench latency` and `throughput` on a tiny model: figures in table and file."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.make_tiny_models import write_tiny_model

from kokuban.cli import app


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_each_batch_has_a_row_and_the_file_says_how_it_was_made(
    command: str, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")
    path = tmp_path / "out.json"
    small = "--batch 1,3 --prompt-tokens 20 --output-tokens 40 --rounds 2 --threads 1"

    done = CliRunner().invoke(
        app, ["bench", command, str(model), *small.split(), "--json", str(path)]
    )

    assert done.exit_code == 0, done.output
    document = json.loads(path.read_text())
    assert [each["size"] for each in document["figures"]] == [1, 3]
    for each in document["figures"]:
        assert each["preemptions"] == 0
        for name, figure in each["figures"].items():
            assert name in document["formulas"]
            if figure is None:
                # On a busy machine a whole answer of this model may be read in one turn.
                assert name in ("decode_tok_s", "tpot_s", "decode_of_limit")
                continue
            assert len(figure["values"]) == 2
            assert figure["median"] > 0
        assert each["figures"]["prefill_of_limit"]["median"] < 1
        total, output = each["figures"]["total_tok_s"], each["figures"]["output_tok_s"]
        assert total["values"][0] == pytest.approx(output["values"][0] * 60 / 40)
    assert document["engine"]["threads"] == 1
    assert document["facts"]["command"].split()[0] == "kokuban"
    assert "decode_tok_s: tokens of the steps in which all requests decode" in done.output
