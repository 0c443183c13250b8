"""OpenVINO GenAI as a worker of the peer benchmarks: IR_DIR THREADS.

Runs in an environment with openvino-genai. Its continuous batching pipeline is stepped by hand,
with K and V in its own eight bits (u8, the default of its CPU plugin) and without a prefix cache.
"""

import sys
from importlib.metadata import version

import numpy as np
import openvino as ov
import openvino_genai as genai
from worker import Case, Record, Times, work

CACHE_GB, STEP_TOKENS, MAX_SEQUENCES = 2, 2048, 64


class Runner:
    """Steps the pipeline until every sequence has all its tokens."""

    def __init__(self, directory: str, threads: int) -> None:
        config = genai.SchedulerConfig()
        config.cache_size = CACHE_GB
        config.max_num_batched_tokens = STEP_TOKENS
        config.max_num_seqs = MAX_SEQUENCES
        config.enable_prefix_caching = False
        settings = {"INFERENCE_NUM_THREADS": str(threads), "KV_CACHE_PRECISION": "u8"}
        self._pipeline = genai.ContinuousBatchingPipeline(directory, config, "CPU", settings)
        self._num_requests = 0

    def run(self, case: Case) -> Times:
        options = genai.GenerationConfig()
        options.max_new_tokens, options.ignore_eos, options.do_sample = case.new, True, False
        prompts = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in case.prompts()]
        record = Record(case.batch)
        handles = [
            self._pipeline.add_request(self._num_requests + index, prompt, options)
            for index, prompt in enumerate(prompts)
        ]
        self._num_requests += case.batch
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for index, handle in enumerate(handles):
                if handle.can_read():
                    [output] = handle.read().values()
                    record.take(index, len(output.generated_ids))
        return record.times()


def main() -> None:
    directory, threads = sys.argv[1], int(sys.argv[2])
    facts = {
        "version": f"openvino-genai {version('openvino-genai')}",
        "threads": threads,
        "kv": "u8",
        "step": STEP_TOKENS,
    }
    work(facts, Runner(directory, threads).run)


if __name__ == "__main__":
    main()
