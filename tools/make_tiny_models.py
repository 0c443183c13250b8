"""Make tiny random models of every architecture: `python -m tools.make_tiny_models OUT [VARIANT]`.

Tests make them in temporary directories; a model takes some tens of milliseconds and 8 MB as f32.
"""

import argparse
from pathlib import Path
from typing import Literal

from tools.tiny_configs import HF_ONLY, VARIANTS, random_weights, variant_config
from tools.tiny_formats import write_hf, write_tiny_gguf

from kokuban.weights.quant_types import TensorType

DTYPES = tuple(stored.name.lower() for stored in TensorType)


def write_tiny_model(
    directory: Path,
    variant: str,
    *,
    seed: int = 0,
    form: Literal["hf", "gguf"] = "hf",
    dtype: str = "f32",
) -> Path:
    """Write one of `VARIANTS`.

    Args:
        form: GGUF has no key for some numbers; variants in `HF_ONLY` have no such file.
        dtype: how matrices are stored: f32, f16 or bf16 in both forms; in GGUF any of `DTYPES`.

    Returns:
        The model's directory, or its GGUF file: both under `directory`, named for the variant, the
        type and the seed.
    """
    assert form == "hf" or variant not in HF_ONLY, f"{variant} cannot be a GGUF file"
    config = variant_config(variant)
    weights = random_weights(config, seed)
    path = directory / f"{variant}-{dtype}-{seed}"
    if form == "gguf":
        return write_tiny_gguf(path.with_suffix(".gguf"), config, weights, quant=dtype)
    return write_hf(path, config, weights, dtype=dtype)


def main() -> None:
    """Write the variants asked for, in both forms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    args = parser.parse_args()
    for variant in args.variants:
        forms: list[Literal["hf", "gguf"]] = []
        if not TensorType[args.dtype.upper()].quantized:
            forms.append("hf")
        if variant not in HF_ONLY:
            forms.append("gguf")
        for form in forms:
            print(
                write_tiny_model(
                    args.directory, variant, seed=args.seed, form=form, dtype=args.dtype
                )
            )


if __name__ == "__main__":
    main()
