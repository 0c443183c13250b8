"""Loads the golden values in fixtures/; `tools/make_goldens.py` says how they are made."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIXTURES = Path(__file__).parent / "fixtures"

SURE_GAP = 0.5
"""Between the two best logits of the reference: above it the best token must be the same."""


@dataclass(frozen=True, slots=True)
class TinyGolden:
    """What transformers computes for a model of `tools.make_tiny_models` with seed 0."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    logits: NDArray[np.float32]
    """[positions, V]."""


def tiny_golden(variant: str) -> TinyGolden:
    """The golden values of one of `tools.tiny_configs.VARIANTS`."""
    with np.load(FIXTURES / "tiny" / f"{variant}.npz") as saved:
        return TinyGolden(
            token_ids=tuple(saved["token_ids"].tolist()),
            positions=tuple(saved["positions"].tolist()),
            logits=saved["logits"],
        )


class PooledGolden(NamedTuple):
    """What transformers makes of the ids that every tiny model reads, after the final norm."""

    token_ids: tuple[int, ...]
    last: NDArray[np.float32]
    mean: NDArray[np.float32]


def pooled_golden(variant: str) -> PooledGolden:
    """The golden vectors of one of `tools.make_goldens.HIDDEN_VARIANTS`."""
    with np.load(FIXTURES / "hidden.npz") as saved:
        last, mean = saved[variant]
    return PooledGolden(tiny_golden(variant).token_ids, last, mean)


@dataclass(frozen=True, slots=True)
class ScoredText:
    """One of a real model's ten texts, and what transformers computes at its last 32 tokens."""

    token_ids: tuple[int, ...]
    """All that is read; row i of the scores belongs to token len(token_ids) - 32 + i."""

    argmax: NDArray[np.int32]
    gap: NDArray[np.float32]
    """[32], best logit less second best."""

    norm: NDArray[np.float32]
    """[32], of the whole row of logits."""

    vocab_ids: NDArray[np.int32]
    """[1024], the random subset of the vocabulary that is kept."""

    logits: NDArray[np.float16]
    """[32, 1024]."""


def scored_texts(model: str) -> Iterator[ScoredText]:
    """The ten texts of a real model: "smollm2", "qwen" or "gemma"."""
    with np.load(FIXTURES / "gguf" / f"{model}.npz") as saved:
        kept = dict(saved)
    rows = len(kept["argmax"]) // (len(kept["starts"]) - 1)
    for i, (start, end) in enumerate(zip(kept["starts"], kept["starts"][1:], strict=False)):
        scored = slice(i * rows, (i + 1) * rows)
        yield ScoredText(
            token_ids=tuple(kept["token_ids"][start:end].tolist()),
            argmax=kept["argmax"][scored],
            gap=kept["gap"][scored],
            norm=kept["norm"][scored],
            vocab_ids=kept["vocab_ids"],
            logits=kept["logits"][scored],
        )


class Agreement(NamedTuple):
    """How near logits are to the golden ones, over rows."""

    cosine: NDArray[np.float64]
    """By row, over the kept subset of the vocabulary."""

    centred_cosine: NDArray[np.float64]
    """The same after each row's mean is taken off: an offset common to all logits hides nothing."""

    norm_ratio: NDArray[np.float64]
    """Norm of the whole row over the golden one."""

    sure: NDArray[np.bool_]
    """Whether the golden gap is above SURE_GAP."""

    same_argmax: NDArray[np.bool_]


def compare(text: ScoredText, logits: NDArray[np.floating]) -> Agreement:
    """Compare [32, V] logits of the text's last 32 tokens with the golden values."""
    ours = np.asarray(logits[:, text.vocab_ids], np.float64)
    golden = text.logits.astype(np.float64)
    return Agreement(
        cosine=_cosine(ours, golden),
        centred_cosine=_cosine(
            ours - ours.mean(axis=1, keepdims=True), golden - golden.mean(axis=1, keepdims=True)
        ),
        norm_ratio=np.linalg.norm(np.asarray(logits, np.float64), axis=1) / text.norm,
        sure=text.gap > SURE_GAP,
        same_argmax=logits.argmax(axis=1) == text.argmax,
    )


def _cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / norms)
