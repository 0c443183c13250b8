"""llama.cpp, or ik_llama.cpp, as a worker of the peer benchmarks: MODEL THREADS [repack].

Runs in an environment with llama-cpp-python or ik-llama-cpp-python. The C API is called as
llama.cpp's own batched benchmark calls it; the most likely token is found by numpy, which takes
less time than the library's sampler.
"""

import ctypes
import importlib
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from worker import Case, Record, Times, work

BATCH, UBATCH, MAX_SINGLE = 2048, 512, 4096
FLASH_ATTENTION_ON = 1

Item = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are wanted."""


def find_library() -> tuple[Any, str]:
    """The C API as a module, and the version of its package."""
    for module, package in (
        ("llama_cpp.llama_cpp", "llama-cpp-python"),
        ("ik_llama_cpp._ctypes_api", "ik-llama-cpp-python"),
    ):
        try:
            return importlib.import_module(module), f"{package} {version(package)}"
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise
    sys.exit("neither llama_cpp nor ik_llama_cpp is installed in this environment")


class Runner:
    """One model with a context for each batch size, made when it is first wanted."""

    def __init__(self, api: Any, model: str, threads: int, *, repack: bool) -> None:
        self._api, self._threads = api, threads
        self._is_ik = not hasattr(api, "llama_get_memory")
        params = api.llama_model_default_params()
        if repack:
            params.repack_tensors = True
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(model.encode(), params)
        if not self._model:
            sys.exit(f"{model} cannot be loaded")
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._contexts: dict[int, Any] = {}
        self._batch = api.llama_batch_init(BATCH, 0, 1)

    def run(self, case: Case) -> Times:
        context = self._cleared(case)
        record = Record(case.batch)
        items = [
            (token, position, sequence, position == case.prompt - 1)
            for sequence, prompt in enumerate(case.prompts())
            for position, token in enumerate(prompt)
        ]
        tokens = self._step(context, items, record)
        for position in range(case.prompt, case.prompt + case.new - 1):
            items = [(token, position, sequence, True) for sequence, token in enumerate(tokens)]
            tokens = self._step(context, items, record)
        return record.times()

    def _step(self, context: Any, items: Sequence[Item], record: Record) -> list[int]:
        """Compute these, and give the most likely next token of each sequence that asked."""
        found: list[int] = []
        for begin in range(0, len(items), BATCH):
            part = items[begin : begin + BATCH]
            self._fill(part)
            if (status := self._api.llama_decode(context, self._batch)) != 0:
                sys.exit(f"llama_decode answered {status} to {len(part)} tokens")
            for index, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    found.append(self._argmax(context, index))
                    record.take(sequence)
        return found

    def _fill(self, items: Sequence[Item]) -> None:
        batch = self._batch
        batch.n_tokens = len(items)
        for index, (token, position, sequence, wanted) in enumerate(items):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted

    def _argmax(self, context: Any, index: int) -> int:
        logits = self._api.llama_get_logits_ith(context, index)
        address = ctypes.addressof(logits.contents)
        values = (ctypes.c_float * self._vocab_size).from_address(address)
        return int(np.frombuffer(values, dtype=np.float32).argmax())

    def _cleared(self, case: Case) -> Any:
        context = self._contexts.get(case.batch)
        if context is None:
            context = self._contexts[case.batch] = self._make_context(case)
        if self._is_ik:
            self._api.llama_kv_cache_clear(context)
        else:
            self._api.llama_memory_clear(self._api.llama_get_memory(context), True)
        return context

    def _make_context(self, case: Case) -> Any:
        params = self._api.llama_context_default_params()
        each = MAX_SINGLE if case.batch == 1 else -(-(case.prompt + case.new) // 256) * 256
        params.n_ctx = each * case.batch
        params.n_batch, params.n_ubatch, params.n_seq_max = BATCH, UBATCH, case.batch
        params.n_threads = params.n_threads_batch = self._threads
        if self._is_ik:
            params.flash_attn = True
        else:
            params.flash_attn_type = FLASH_ATTENTION_ON
        context = self._api.llama_init_from_model(self._model, params)
        return context or sys.exit(f"no context for {case.batch} sequences of {each} tokens")


def facts(package: str, threads: int, *, repack: bool) -> Iterator[tuple[str, Any]]:
    yield from (("version", package), ("threads", threads), ("kv", "f16"))
    yield from (("flash attention", True), ("batch", BATCH), ("ubatch", UBATCH))
    if repack:
        yield "repacked at load", True


def main() -> None:
    model, threads, repack = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["repack"]
    api, package = find_library()
    runner = Runner(api, model, threads, repack=repack)
    work(dict(facts(package, threads, repack=repack)), runner.run)


if __name__ == "__main__":
    main()
