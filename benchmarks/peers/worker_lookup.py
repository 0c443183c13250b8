"""llama-cpp-python with its own prompt lookup, as a worker of `lookup.py`: MODEL THREADS DRAFTS.

DRAFTS is how many tokens it guesses at a time; 0: none. A line that comes in is a list of token
ids and a number of new tokens; the line that goes out has the ids and the time after the first.
"""

import json
import sys
import time
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

CONTEXT = 4096


def answer(llm: Any, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Greedy, ended by the model's end token or the limit."""
    llm.reset()
    tokens: list[int] = []
    first_s = last_s = 0.0
    for token in llm.generate(prompt, temp=0.0, repeat_penalty=1.0):
        last_s = time.perf_counter()
        first_s = first_s or last_s
        if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token):
            break
        tokens.append(token)
        if len(tokens) == max_tokens:
            break
    return {"tokens": tokens, "decode_s": last_s - first_s}


def main() -> None:
    model, threads, drafts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = llama_cpp.Llama(
        model,
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        verbose=False,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=drafts) if drafts else None,
    )
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(answer(llm, case["prompt"], case["max_tokens"])), flush=True)


if __name__ == "__main__":
    main()
