"""Writes tests/unit/weights/fixtures/quant_blocks.npz: raw blocks and what they mean.

The expected values come from the `gguf` package (its NumPy `quants.dequantize`), which shares no
code with Kokuban. Run it in an environment of its own:

    pip install gguf && python tools/make_quant_fixtures.py
"""

from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np

ENCODED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")

SCALE_OFFSETS = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""Bytes of the float16 fields: random bits would often be NaN there."""

TYPES = (*SCALE_OFFSETS, "F16", "BF16")
OUTPUT = Path(__file__).parents[1] / "tests" / "unit" / "weights" / "fixtures" / "quant_blocks.npz"


def random_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """A few blocks of random bits whose scales are finite numbers of either sign."""
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    blocks = rng.integers(0, 256, (6, block_bytes), np.uint8)
    if block_bytes == 2:
        values = rng.normal(0, 1, 64)
        if name == "F16":
            return values.astype(np.float16).view(np.uint8)
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    for offset in SCALE_OFFSETS[name]:
        scales = rng.normal(0, 0.1, (len(blocks), 1)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(-1)


def main() -> None:
    rng = np.random.default_rng(20260101)
    arrays = {}
    for name in TYPES:
        raw = random_blocks(name, rng)
        arrays[f"{name}_raw"] = raw
        arrays[f"{name}_values"] = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    rows = rng.normal(0, 1, (4, 64)).astype(np.float32)
    rows[0, :32] = 0
    arrays["rows"] = rows
    for name in ENCODED:
        encoded = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[name])
        arrays[f"{name}_encoded"] = encoded.reshape(-1)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUTPUT, **arrays)
    print(f"{OUTPUT}: {OUTPUT.stat().st_size:,} bytes, gguf {version('gguf')}")


if __name__ == "__main__":
    main()
