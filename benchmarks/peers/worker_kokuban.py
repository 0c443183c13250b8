"""Kokuban as a worker of the peer benchmarks: orders on stdin, times on stdout."""

import json
import random
import sys
import time

from kokuban import LLM, SamplingParams, __version__
from kokuban.core.config import RuntimeConfig


def main() -> None:
    model, threads = sys.argv[1], int(sys.argv[2])
    rng = random.Random(0)
    with LLM(model, runtime=RuntimeConfig(threads=threads)) as llm:
        print(json.dumps({"version": __version__}), flush=True)
        for line in sys.stdin:
            case = json.loads(line)
            prompt = [rng.randrange(100, 40_000) for _ in range(case["prompt"])]
            params = SamplingParams(max_tokens=case["new"], temperature=0, ignore_eos=True)
            times = [time.perf_counter()]
            for delta in llm.stream(prompt, params):
                times += [time.perf_counter()] * len(delta.tokens)
            print(
                json.dumps({"first": times[1] - times[0], "rest": times[-1] - times[1]}), flush=True
            )


if __name__ == "__main__":
    main()
