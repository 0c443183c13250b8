"""Transformers in float32 as a worker of quality.py. Runs in an environment of its own.

    python quality_reference.py MODEL.gguf WINDOWS.json SCORES.json THREADS [GROUP]

WINDOWS.json: lists of token ids. SCORES.json: for each the natural logarithm of the probability of
every token but the first. The weights are the file's, dequantised to float32. With GROUP the inputs
of all linear layers are rounded to int8, so many with one scale, and nothing else is.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def round_inputs(model: torch.nn.Module, group: int) -> None:
    """Have every linear layer read what is left of its inputs after int8; rows end in less."""

    def rounded(_layer: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        [x] = inputs
        padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % group))
        groups = padded.unflatten(-1, (-1, group))
        scales = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return ((groups / scales).round() * scales).flatten(-2)[..., : x.shape[-1]]

    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_pre_hook(rounded)


def main() -> None:
    path, source, target = map(Path, sys.argv[1:4])
    torch.set_num_threads(int(sys.argv[4]))
    windows = json.loads(source.read_text())
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    if len(sys.argv) > 5:
        round_inputs(model, int(sys.argv[5]))
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
