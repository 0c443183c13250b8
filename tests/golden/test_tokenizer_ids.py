"""Ids of the real models' tokenizers against transformers, for gemma against llama.cpp.

The values and the reason: `tools/make_tokenizer_goldens.py`.
"""

import json
from typing import Any

import pytest
from tests.golden.goldens import FIXTURES

from kokuban.kernels.merges import find_merges
from kokuban.text.load import ModelText, load_text
from kokuban.weights.pull import models_dir
from kokuban.weights.source import open_source

pytestmark = pytest.mark.models

# transformers builds this tokenizer from GGUF without the step that cuts every number out, which
# the model's own tokenizer.json and the reference vectors have; "½" and "①" are numbers.
DIFFERS = {"smollm2": {"ﬁ ligature ① ½ ℌ"}}


@pytest.fixture(scope="module", params=["smollm2", "qwen", "gemma"])
def model(request: pytest.FixtureRequest) -> tuple[str, ModelText]:
    path = models_dir() / f"{request.param}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is absent; run tools/fetch_test_models.py")
    return request.param, load_text(open_source(path).tokenizer_source(), find_merges)


def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FIXTURES / f"tokenizer_{name}.json").read_text())
    return content


def test_texts_have_the_ids_of_the_independent_implementation(model: tuple[str, ModelText]) -> None:
    name, text = model
    cases = golden(name)["texts"]

    wrong = {
        case
        for case, ids in cases
        if text.tokenizer.encode(case, add_bos=False, parse_special=False) != ids
    }

    assert len(cases) >= 25
    assert wrong == DIFFERS.get(name, set())


def test_streamed_ids_give_the_text_back(model: tuple[str, ModelText]) -> None:
    name, text = model
    for case, ids in golden(name)["texts"]:
        assert text.tokenizer.decode(ids, skip_special=True) == case


def test_a_conversation_has_the_text_and_ids_of_transformers(model: tuple[str, ModelText]) -> None:
    name, text = model
    chat = golden(name)["chat"]
    if chat is None:
        pytest.skip(f"{name} has no chat template")

    assert text.chat_template.render_chat(chat["messages"]) == chat["text"]
    assert text.chat_template.encode_chat(chat["messages"]) == chat["ids"]
