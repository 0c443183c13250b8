"""64 requests in a KV pool that is too small for them: each ends with the text that it gives alone.

A real forward pass under the real scheduler and engine: chunks, batches and preemption mix as they
come. Greedy and sampled requests alike, since random numbers come from a counter.
"""

from pathlib import Path

import numpy as np
from tools.make_tiny_models import write_tiny_model

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig, SchedulerConfig

NUM_REQUESTS = 64
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 256, length).tolist() for length in RNG.integers(1, 120, NUM_REQUESTS)]
PARAMS = [
    SamplingParams(
        temperature=0.0 if i % 2 else 1.0,
        seed=i,
        top_p=0.9 if i % 3 else 1.0,
        repetition_penalty=1.2 if i % 5 == 0 else 1.0,
        max_tokens=int(length),
        ignore_eos=True,
    )
    for i, length in enumerate(RNG.integers(1, 80, NUM_REQUESTS))
]


def blocks(path: Path, num_blocks: int) -> RuntimeConfig:
    """A pool of so many blocks of 16 tokens: 3 layers, K and V, 2 heads of 32 in bf16."""
    return RuntimeConfig(kv_memory_bytes=num_blocks * 16 * 3 * 2 * 2 * 32 * 2, threads=2)


def test_a_pool_too_small_for_all_changes_no_text(tmp_path: Path) -> None:
    """Keeps B57 out: docs/bugbank.md."""
    path = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q4_k")
    with LLM(path, runtime=blocks(path, 512)) as llm:
        alone = [
            llm.generate([prompt], params)[0].choices[0].token_ids
            for prompt, params in zip(PROMPTS, PARAMS, strict=True)
        ]

    small = SchedulerConfig(token_budget=96, max_running_requests=32)
    with LLM(path, scheduler=small, runtime=blocks(path, 40)) as llm:
        together = [output.choices[0] for output in llm.generate(PROMPTS, PARAMS)]
        stats = llm.engine.client.stats()

    assert stats.num_blocks == 40
    assert stats.preemptions > 0, "the pool was large enough: the test shows nothing"
    assert [choice.token_ids for choice in together] == alone
    assert [len(ids) for ids in alone] == [params.max_tokens for params in PARAMS]
