"""Writes ids of sample texts as an independent implementation gives them, for the tokenizer tests.

Run with an interpreter that has transformers and gguf, once for each GGUF file:

    python tools/make_tokenizer_goldens.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

or, with --llama-cpp, with one that has llama-cpp-python. Gemma 3 needs that: transformers 4.57.6
cuts " world" in three with this vocabulary, which has it as one piece.

The result goes to tests/golden/fixtures/tokenizer_<name>.json: texts with their ids without special
tokens added, and (transformers only) a conversation with the ids of its rendered template.
"""

import argparse
import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "golden" / "fixtures"

TEXTS = (
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\t\tx",
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three",
    "12345 don't  \n\n x",
    "Don'T we'LL",
    "a\u00a0b",
    "日本語123",
    "한국어 ไทย العربية עברית",
    "😀 👩‍👩‍👧 é é",
    'for i in range(10):\n    print(f"{i:>3}")\n',
    "https://example.org/a_b?c=d&e=%20",
    "<b>bold</b> &amp; <br/>",
    "3.14159e-10 1,000,000 0x1F",
    "\u0000\u0001\u007f",
    "CamelCaseWordsAndSCREAMING_SNAKE",
    "ﬁ ligature ① ½ ℌ",
    "a" * 40,
    "!?" * 20,
)

CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 + 2?\n\nThanks "},
    {"role": "assistant", "content": "4."},
    {"role": "user", "content": "日本語で。"},
)


def ids_of_transformers(gguf: Path) -> tuple[list[Any], dict[str, Any] | None]:
    """Ids of all texts, and the conversation if the model has a template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    texts = [[text, tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]
    if not tokenizer.chat_template:
        return texts, None
    messages = list(CONVERSATION)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return texts, {"messages": messages, "text": text, "ids": ids}


def ids_of_llama_cpp(gguf: Path) -> list[Any]:
    from llama_cpp import Llama

    model = Llama(str(gguf), vocab_only=True, verbose=False)
    return [[text, model.tokenize(text.encode(), add_bos=False)] for text in TEXTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="short name of the model, part of the fixture's name")
    parser.add_argument("gguf", type=Path, help="the GGUF file")
    parser.add_argument("--llama-cpp", action="store_true", help="take ids from llama-cpp-python")
    arguments = parser.parse_args()
    chat = None
    if arguments.llama_cpp:
        texts = ids_of_llama_cpp(arguments.gguf)
    else:
        texts, chat = ids_of_transformers(arguments.gguf)
    path = FIXTURES / f"tokenizer_{arguments.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "model": arguments.gguf.name,
        "by": "llama.cpp" if arguments.llama_cpp else "transformers",
        "texts": texts,
        "chat": chat,
    }
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
