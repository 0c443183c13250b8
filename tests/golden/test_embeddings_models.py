"""Vectors of real models: sentences of one subject lie nearer to each other than to others."""

from collections.abc import Iterator

import numpy as np
import pytest

from kokuban import LLM, PoolingParams
from kokuban.core.config import RuntimeConfig
from kokuban.weights.pull import models_dir

pytestmark = pytest.mark.models

SUBJECTS = (
    ("A cat sleeps on the warm sofa.", "The kitten is napping on a cushion."),
    ("The company reported higher profits this quarter.", "Earnings of the firm rose in spring."),
    ("Heavy rain flooded the streets of the town.", "After the storm the roads were under water."),
)


@pytest.fixture(scope="module", params=["smollm2", "qwen", "gemma"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    path = models_dir() / f"{request.param}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is absent; run tools/fetch_test_models.py")
    with LLM(path, runtime=RuntimeConfig(kv_memory_bytes=2**26)) as llm:
        yield llm


def test_sentences_of_one_subject_are_nearest_to_each_other(llm: LLM) -> None:
    texts = [text for pair in SUBJECTS for text in pair]

    outputs = llm.embed(texts, PoolingParams(pooling="mean"))

    vectors = np.array([output.embedding for output in outputs])
    # What all sentences have in common says nothing about any of them.
    vectors -= vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -1)
    assert likeness.argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4]


def test_equal_texts_have_equal_vectors_in_any_company(llm: LLM) -> None:
    texts = [text for pair in SUBJECTS for text in pair]

    together = llm.embed([*texts, texts[0]], PoolingParams(pooling="mean"))
    [alone] = llm.embed(texts[0], PoolingParams(pooling="mean"))

    assert together[0].data == together[-1].data == alone.data
