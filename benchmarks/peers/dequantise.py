"""Write the weights of a GGUF file as bf16, for peers that read no GGUF: FILE.gguf OUT_DIR.

Runs in an environment with transformers, torch, accelerate, gguf and sentencepiece. What comes out
is a Hugging Face style directory with the same numbers, rounded to bf16, so that a peer that
quantises them again (OpenVINO) or not (vLLM) computes the same model.
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="a GGUF file")
    parser.add_argument("directory", type=Path, help="is made")
    args = parser.parse_args()
    where = {"pretrained_model_name_or_path": args.file.parent, "gguf_file": args.file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    model.save_pretrained(args.directory)
    AutoTokenizer.from_pretrained(**where).save_pretrained(args.directory)


if __name__ == "__main__":
    main()
