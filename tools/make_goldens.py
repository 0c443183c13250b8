"""Make the golden values of tests/golden with Hugging Face transformers in float32.

    python -m tools.make_goldens tiny FIXTURES
    python -m tools.make_goldens hidden FIXTURES
    python -m tools.make_goldens rope FIXTURES
    python -m tools.make_goldens gguf FIXTURES NAME MODEL.gguf

It needs an environment of its own, with `torch`, `transformers` and `gguf` beside this project's
source; the values were made with torch 2.13 and transformers 4.57.6. Nothing of Kokuban computes
them: from the project come only inputs, the tiny models' numbers and random weights and the ids of
the texts.

Layout of the fixtures (.npz):
    tiny/<variant>: token_ids [300]; positions [P]; logits [P, V] float32 at those positions.
    hidden: for each of HIDDEN_VARIANTS, which read the same ids, [2, E] float32: the last hidden
        state after the final norm, and the mean of all 300 of them.
    rope: for each configuration its inverse frequencies (float32), the attention factor last.
    gguf/<name>: ten texts end to end. token_ids [N]; starts [11], where each text begins; the
        rest is by row, for the last 32 tokens of each text, [320] rows in all: argmax; gap, best
        logit less second best; norm of all logits; logits [320, 1024] float16 at vocab_ids [1024],
        a random subset that is the same for all rows. A cosine over the subset estimates that over
        the vocabulary.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tools.golden_texts import TEXTS
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import VARIANTS, VOCAB_SIZE, variant_config
from tools.tiny_formats import hf_config
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kokuban.text.load import load_text
from kokuban.weights.source import open_source

POSITIONS = (0, 1, 2, 10, 20, 22, 23, 24, 25, 33, 48, 63, 64, 65, 100, 119, 120, 200, 299)
"""Around the window of 24, the original context of 64, and far beyond both."""

HIDDEN_VARIANTS = ("llama", "qwen3", "gemma3", "phi3")

NUM_SCORED = 32
SUBSET = 1024


def prompt_ids() -> NDArray[np.int64]:
    """The 300 ids that every tiny model reads."""
    return np.random.RandomState(1).randint(0, VOCAB_SIZE, 300)


def make_tiny(fixtures: Path) -> None:
    """Logits of every tiny variant."""
    token_ids = prompt_ids()
    (fixtures / "tiny").mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            path = write_tiny_model(Path(directory), variant)
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            )
        logits = _logits(model, token_ids.tolist())[list(POSITIONS)]
        np.savez_compressed(
            fixtures / "tiny" / f"{variant}.npz",
            token_ids=token_ids.astype(np.int32),
            positions=np.array(POSITIONS, np.int32),
            logits=logits,
        )
        print(variant, logits.std())


def make_hidden(fixtures: Path) -> None:
    """Pooled hidden states of some tiny variants."""
    values = {}
    for variant in HIDDEN_VARIANTS:
        with tempfile.TemporaryDirectory() as directory:
            path = write_tiny_model(Path(directory), variant)
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation="eager"
            )
        with torch.no_grad():
            states = (
                model.model(torch.tensor([prompt_ids().tolist()])).last_hidden_state[0].double()
            )
        values[variant] = torch.stack([states[-1], states.mean(dim=0)]).float().numpy()
        print(variant, states.std().item())
    np.savez_compressed(fixtures / "hidden.npz", **values)


def make_rope(fixtures: Path) -> None:
    """Inverse frequencies of every scaling, for tests/unit/program."""
    values = {}
    for variant in ("llama", "llama_linear", "llama_llama3", "llama_yarn", "phi3_longrope"):
        config = variant_config(variant)
        for theta in (10_000.0, 500_000.0):
            hf = PretrainedConfig(
                **hf_config(replace(config, rope=replace(config.rope, theta=theta)))
            )
            kind = {"none": "default"}.get(config.rope.scaling, config.rope.scaling)
            for length in (16, 512):
                frequencies, factor = ROPE_INIT_FUNCTIONS[kind](hf, None, seq_len=length)
                row = np.append(frequencies.numpy(), np.float32(factor))
                values[f"{variant} {theta:.0f} {length}"] = row
    np.savez_compressed(fixtures / "rope.npz", **values)


def make_gguf(fixtures: Path, name: str, path: Path) -> None:
    """Logits of a real model on the last 32 tokens of ten texts."""
    tokenizer = load_text(open_source(path).tokenizer_source()).tokenizer
    sequences = [
        tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=False) for text in TEXTS
    ]
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    logits = np.concatenate([_logits(model, ids, NUM_SCORED) for ids in sequences])
    assert len(logits) == NUM_SCORED * len(TEXTS), "a text is too short"
    best = np.sort(logits, axis=1)[:, -2:]
    gap = best[:, 1] - best[:, 0]
    subset = np.sort(np.random.RandomState(2).permutation(logits.shape[1])[:SUBSET])
    (fixtures / "gguf").mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        fixtures / "gguf" / f"{name}.npz",
        token_ids=np.concatenate(sequences).astype(np.int32),
        starts=np.cumsum([0, *map(len, sequences)]).astype(np.int32),
        argmax=logits.argmax(axis=1).astype(np.int32),
        gap=gap.astype(np.float32),
        norm=np.linalg.norm(logits, axis=1).astype(np.float32),
        vocab_ids=subset.astype(np.int32),
        logits=logits[:, subset].astype(np.float16),
    )
    print(name, logits.shape, "share with a gap of 0.5 or less:", (gap <= 0.5).mean())
    print((gap <= 0.5).reshape(len(TEXTS), -1).sum(axis=1))


def _logits(model: Any, token_ids: Sequence[int], last: int = 0) -> NDArray[np.float32]:
    """Of all positions, or of the last ones."""
    with torch.no_grad():
        step = model(torch.tensor([list(token_ids)]), logits_to_keep=last)
    return step.logits[0].float().numpy()


def main() -> None:
    """Make one kind of fixture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["tiny", "hidden", "rope", "gguf"])
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("name", nargs="?")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.kind == "tiny":
        make_tiny(args.fixtures)
    elif args.kind == "hidden":
        make_hidden(args.fixtures)
    elif args.kind == "rope":
        make_rope(args.fixtures)
    else:
        make_gguf(args.fixtures, args.name, args.model)


if __name__ == "__main__":
    main()
