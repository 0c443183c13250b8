"""Writes ids of sample texts as Hugging Face transformers gives them, for the tokenizer tests.

Run with an interpreter that has transformers and gguf, once for each GGUF file:

    python tools/make_tokenizer_goldens.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf

The result goes to tests/golden/fixtures/tokenizer_<name>.json: texts with their ids without special
tokens added, and a conversation with the ids of its rendered template.
"""

import argparse
import json
from pathlib import Path

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


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="short name of the model, part of the fixture's name")
    parser.add_argument("gguf", type=Path, help="the GGUF file")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.gguf.parent, gguf_file=arguments.gguf.name)
    cases = [[text, tokenizer.encode(text, add_special_tokens=False)] for text in TEXTS]
    chat = None
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(
            list(CONVERSATION), tokenize=False, add_generation_prompt=True
        )
        chat = {
            "messages": list(CONVERSATION),
            "text": text,
            "ids": tokenizer.encode(text, add_special_tokens=False),
        }
    path = FIXTURES / f"tokenizer_{arguments.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"model": arguments.gguf.name, "texts": cases, "chat": chat}
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
