"""What do quantised activations and bf16 KV cost in perplexity, beside float32 throughout?

Run:    python benchmarks/quality.py MODEL.gguf --text wikitext2_test.txt --reference-python PATH
        PATH is the python of an environment with torch 2.13, transformers 4.57.6 and gguf.
        --scores FILE keeps the reference's scores (minutes to make) for the next run.
Reads:  the perplexities over the same tokens, and by how much ours is higher, with the standard
        error of the difference. The bar is 0.5 %.

Both compute the same file: the reference dequantises its weights and computes in float32.
The text is cut into windows that do not overlap; a window's first token is not scored.
"""

import argparse
import json
import math
import statistics
import subprocess
import tempfile
from pathlib import Path

from kokuban.engine.kv_quant import KvQuantConfig, cut_windows
from kokuban.engine.trial import Trial, load_model

HERE = Path(__file__).resolve().parent


def reference_scores(
    python: str, model: Path, windows: list[list[int]], threads: int
) -> list[list[float]]:
    """Log probabilities of each window's tokens by transformers."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "windows.json"), Path(directory, "scores.json")
        source.write_text(json.dumps(windows))
        script = str(HERE / "quality_reference.py")
        command = [python, "-P", script, str(model), str(source), str(target), str(threads)]
        subprocess.run(command, check=True)
        scores: list[list[float]] = json.loads(target.read_text())
    return scores


def kept_scores(
    file: Path | None, python: str, model: Path, windows: list[list[int]], threads: int
) -> list[list[float]]:
    """The reference's scores of these windows, from the file if it has them."""
    if file is not None and file.exists():
        kept = json.loads(file.read_text())
        if kept["windows"] == windows:
            scores: list[list[float]] = kept["scores"]
            return scores
    scores = reference_scores(python, model, windows, threads)
    if file is not None:
        file.write_text(json.dumps({"windows": windows, "scores": scores}))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--scores", type=Path, help="where the reference's scores are kept")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--kv-dtypes", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    model = load_model(str(args.model), threads=args.threads)
    config = KvQuantConfig(num_tokens=args.tokens, window=args.window)
    windows = cut_windows(model.tokenizer, args.text.read_text(), config)
    reference = kept_scores(args.scores, args.reference_python, args.model, windows, args.threads)
    exact = [score for window in reference for score in window]
    base = math.exp(-statistics.fmean(exact))
    print(f"{args.model.name}: {len(exact)} tokens in windows of {args.window}")
    print(f"transformers, float32 throughout: perplexity {base:.4f}")
    for dtype in args.kv_dtypes.split(","):
        trial = Trial(model, dtype, num_requests=1, num_tokens=args.window)
        ours = [score.logprob for window in windows for score in trial.score(window)]
        losses = [a - b for a, b in zip(exact, ours, strict=True)]
        error = statistics.stdev(losses) / math.sqrt(len(losses))
        print(
            f"kokuban, KV {dtype}: perplexity {math.exp(-statistics.fmean(ours)):.4f}, "
            f"{math.expm1(statistics.fmean(losses)):+.3%} ± {error:.3%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
