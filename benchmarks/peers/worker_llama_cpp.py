"""llama.cpp as a worker of the peer benchmarks. Runs in an environment of its own."""

import json
import random
import sys
import time

import llama_cpp


def main() -> None:
    model, threads = sys.argv[1], int(sys.argv[2])
    rng = random.Random(0)
    llm = llama_cpp.Llama(
        model, n_threads=threads, n_threads_batch=threads, n_ctx=4096, n_batch=2048, n_ubatch=512,
        flash_attn=True, verbose=False,
    )  # fmt: skip
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        prompt = [rng.randrange(100, 40_000) for _ in range(case["prompt"])]
        llm.reset()
        start = time.perf_counter()
        llm.eval(prompt)
        token = llm.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(case["new"] - 1):
            llm.eval([token])
            token = llm.sample(temp=0.0)
        print(json.dumps({"first": first - start, "rest": time.perf_counter() - first}), flush=True)


if __name__ == "__main__":
    main()
