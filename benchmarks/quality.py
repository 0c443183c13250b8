"""What do quantised activations and bf16 KV cost in perplexity, beside float32 throughout?

Run:    python benchmarks/quality.py MODEL.gguf --text wikitext2_test.txt --reference-python PATH
        PATH is the python of an environment with torch 2.13, transformers 4.57.6 and gguf.
        --scores FILE keeps the reference's scores (minutes to make) for the next run.
        --groups 32,64,128 lays beside them what the reference says when nothing but the inputs of
        its linear layers is rounded, to int8 in groups of so many: what such a kernel would cost.
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
    python: str, model: Path, windows: list[list[int]], threads: int, group: int = 0
) -> list[list[float]]:
    """Log probabilities of each window's tokens by transformers."""
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "windows.json"), Path(directory, "scores.json")
        source.write_text(json.dumps(windows))
        script = str(HERE / "quality_reference.py")
        command = [python, "-P", script, str(model), str(source), str(target), str(threads)]
        command += [str(group)] if group else []
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


def compare(name: str, exact: list[float], scores: list[float]) -> None:
    """Print a perplexity, and how much higher than the reference's it is."""
    losses = [a - b for a, b in zip(exact, scores, strict=True)]
    error = statistics.stdev(losses) / math.sqrt(len(losses))
    print(
        f"{name}: perplexity {math.exp(-statistics.fmean(scores)):.4f}, "
        f"{math.expm1(statistics.fmean(losses)):+.3%} ± {error:.3%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--reference-python", required=True)
    parser.add_argument("--scores", type=Path, help="where the reference's scores are kept")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--kv-dtypes", default="bf16")
    parser.add_argument("--groups", default="", help="of rounded inputs, like 32,64,128")
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
        compare(f"kokuban, KV {dtype}", exact, ours)
    for group in filter(None, args.groups.split(",")):
        rounded = reference_scores(
            args.reference_python, args.model, windows, args.threads, int(group)
        )
        compare(
            f"reference, inputs int8 in groups of {group}",
            exact,
            [x for window in rounded for x in window],
        )


if __name__ == "__main__":
    main()
