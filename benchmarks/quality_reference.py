"""Transformers in float32 as a worker of quality.py. Runs in an environment of its own.

    python quality_reference.py MODEL.gguf WINDOWS.json SCORES.json THREADS

WINDOWS.json: lists of token ids. SCORES.json: for each the natural logarithm of the probability of
every token but the first. The weights are the file's, dequantised to float32.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    path, source, target = map(Path, sys.argv[1:4])
    torch.set_num_threads(int(sys.argv[4]))
    windows = json.loads(source.read_text())
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    scores = []
    for done, window in enumerate(windows, 1):
        ids = torch.tensor([window])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        scores.append(logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist())
        print(f"window {done} of {len(windows)}", flush=True)
    target.write_text(json.dumps(scores))


if __name__ == "__main__":
    main()
