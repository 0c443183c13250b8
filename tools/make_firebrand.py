"""Make the firebrand fixture: `python -m tools.make_firebrand FIXTURE.npz`.

Firebrand (MIT) compiles a small program into the weights of a Phi-3 whose output is known exactly.
Here: count down from the prompt to 0. It needs an environment of its own, with `firebrand==0.0.1`,
`torch` and `transformers` beside this project's source. The weights are exact in float32; bfloat16
anywhere, the KV cache included, gives another text.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from firebrand import Machine, compile_machine, history
from firebrand.hf_export import to_huggingface
from safetensors.numpy import load_file


def make_countdown(fixture: Path, max_context: int = 128) -> None:
    """Export the checkpoint and keep its weights (float32), tokenizer and numbers."""
    machine = Machine((history() - 1).relu(), lower=0, upper=31, halt_values=(0,))
    with tempfile.TemporaryDirectory() as directory:
        to_huggingface(compile_machine(machine), Path(directory), max_context=max_context)
        config = json.loads((Path(directory) / "config.json").read_text())
        tokenizer = (Path(directory) / "tokenizer.json").read_text()
        weights = load_file(Path(directory) / "model.safetensors")
    narrow = {name: array.astype(np.float32) for name, array in weights.items()}
    for name, array in weights.items():
        lost = np.abs(narrow[name] - array).max()
        print(name, array.shape, "lost in float32:", lost)
    fixture.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        fixture,
        config_json=np.array(json.dumps(config)),
        tokenizer_json=np.array(tokenizer),
        **narrow,
    )


def main() -> None:
    """Make the fixture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fixture", type=Path)
    make_countdown(parser.parse_args().fixture)


if __name__ == "__main__":
    main()
