"""A real model of one megabyte, converted from llama2.c, in the reference backend."""

from pathlib import Path

import pytest
from tests.shared_data import shared_data
from tools.llama2c import convert_llama2c, read_llama2c

from kokuban.runner.reference import load_reference
from kokuban.weights.source import open_source

BOS_ID, LINE_FEED = 1, "<0x0A>"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    checkpoint = shared_data("models/stories260K.bin")
    return convert_llama2c(checkpoint, shared_data("models/tok512.bin"), tmp_path)


def test_greedy_text_begins_as_that_of_llama2c(gguf: Path) -> None:
    source = open_source(gguf)
    pieces = source.metadata["tokenizer.ggml.tokens"]
    sequence = load_reference(source).start()

    text, token_id = "", BOS_ID
    for _ in range(100):
        token_id = int(sequence.append([token_id])[0].argmax())
        text += pieces[token_id].replace("▁", " ").replace(LINE_FEED, "\n")

    expected = shared_data("models/stories260K.expected.txt").read_text()
    assert len(text) > 250
    assert expected.startswith(text.removeprefix(" "))


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    whole = shared_data("models/stories260K.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(whole[:-4])

    with pytest.raises(ValueError, match="floats wanted"):
        read_llama2c(tmp_path / "cut.bin")
