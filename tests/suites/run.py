"""Runs the server tests of llama.cpp or vLLM against `kokuban serve`, and counts by file.

    python -m tests.suites.run llama.cpp --source FOLDER --python VENV/bin/python --model FILE
    python -m tests.suites.run vllm --source FOLDER --python VENV/bin/python --model FILE

FOLDER is `tools/server/tests` of llama.cpp, or `tests` of vLLM, out of their source archives;
`docs/suites.md` says where those are, what VENV holds and how the counts are to be read. The tests
are copied into a folder of their own, with our conftest (`llama_cpp.py`, `vllm_stand_ins.py`) for
theirs; what they printed and the reason of each failure (`why.txt`) lie there too.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.server.child import serving

from kokuban.core.env import for_child

HERE = Path(__file__).resolve().parent
TEST_S = 150
SUITE_S = 3600
LLAMA_CPP_KEY = "sk-this-is-the-secret-key"
VLLM_KEY = "test"
LLAMA_CPP_ALIASES = (
    "tinyllama-2", "test", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "davinci-002",
    "text-embedding-3-small", "gpt-4.1",
)  # fmt: skip
VLLM_ALIASES = ("claude-3-7-sonnet-latest", "zephyr-lora", "qwen3-lora", "test-model")
VLLM_FOLDERS = (
    "openai/chat_completion", "openai/completion", "openai/models", "openai/responses", "openai",
    "openai/decisions", "anthropic", "serve/instrumentator", "serve/tokenize",
)  # fmt: skip
VLLM_FILES = (
    "entrypoints/pooling/basic/test_truncation.py",
    "entrypoints/pooling/embed/test_online.py",
    "entrypoints/pooling/embed/test_online_dimensions.py",
    "entrypoints/pooling/embed/test_online_long_text.py",
    "entrypoints/tool_parsers/test_granite4_tool_parser.py",
    "entrypoints/tool_parsers/test_hermes_tool_parser.py",
    "tool_use/test_chat_completions.py",
    "tool_use/test_parallel_tool_calls.py",
    "tool_use/test_tool_calls.py",
)
CLIENT = re.compile(r"RemoteOpenAIServer|client: (openai\.AsyncOpenAI|OpenAI)")
"""What a file holds that speaks to a server."""

NOT_OURS = re.compile("batched|embeds|harmony|lmeval|mcp_tools|schema|serving|tensorizer|uds")
"""In the name of a file whose tests are about a GPU, a hub, vLLM's inside or other models."""

NAME = re.compile(r'"([\w.-]+/[\w.-]+)"')
RESULT = re.compile(
    r"^(\S+?\.py)::.* (PASSED|FAILED|ERROR|SKIPPED) +(?:\(.*\) +)?\[ *\d+%\]$", re.M
)


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of others, laid out so that they run."""

    root: Path
    """Where pytest is started."""

    files: Sequence[str]
    aliases: Sequence[str]
    """Names that the tests hard-code for the model."""

    serve: Sequence[str] = ()
    """Options of `kokuban serve`."""

    options: Sequence[str] = ()
    """Options of pytest; {url} and {port} are the server's."""

    environment: tuple[str, ...] = ()
    """NAME={port}, as in `options`."""


def llama_cpp(source: Path, root: Path) -> list[Suite]:
    """Their unit tests; those of keys apart, since they want a server with one."""
    shutil.copytree(source, root)
    shutil.copy(HERE / "llama_cpp.py", root / "conftest.py")
    names = sorted(str(path.relative_to(root)) for path in root.glob("unit/test_*.py"))
    keys = "unit/test_security.py"
    common = Suite(
        root, [name for name in names if name != keys], LLAMA_CPP_ALIASES,
        serve=("--max-context-tokens", "256"), options=("-m", "not slow"),
        environment=("DEBUG_EXTERNAL=1", "PORT={port}"),
    )  # fmt: skip
    with_key = (*common.serve, "--api-key", LLAMA_CPP_KEY)
    return [common, replace(common, files=[keys], serve=with_key)]


def vllm(source: Path, root: Path) -> list[Suite]:
    """Those files of the entrypoints that speak to a server; that of keys apart."""
    tests = root / "tests"
    for name in ("entrypoints", "tool_use"):
        shutil.copytree(source / name, tests / name)
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "vllm_server.py", tests / "utils.py")
    shutil.copy(HERE / "vllm_stand_ins.py", root / "conftest.py")
    folders = [tests / "entrypoints" / name for name in VLLM_FOLDERS]
    found = [path for folder in folders for path in sorted(folder.glob("test_*.py"))]
    kept = [p for p in found if CLIENT.search(p.read_text()) and not NOT_OURS.search(p.name)]
    files = [*kept, *(tests / name for name in VLLM_FILES)]
    texts = [path.read_text() for path in (*files, *tests.glob("tool_use/utils.py"))]
    names = {name for text in texts for name in NAME.findall(text)}
    common = Suite(
        root, [str(path.relative_to(root)) for path in files], [*sorted(names), *VLLM_ALIASES],
        serve=("--vllm-metrics",), options=("--target", "{url}", "--asyncio-mode", "auto"),
        environment=("PYTHONPATH=.",),
    )  # fmt: skip
    keys = "tests/entrypoints/serve/middleware/test_optional_middleware.py"
    with_key = (*common.serve, "--api-key", VLLM_KEY)
    return [common, replace(common, files=[keys], serve=with_key)]


def run(suite: Suite, python: Path, model: Path, only: str) -> dict[str, Counter[str]]:
    """What became of the tests of each file."""
    aliases = [part for name in suite.aliases for part in ("--served-model-name", name)]
    files = [name for name in suite.files if only in name]
    if not files:
        return {}
    log = suite.root / f"{Path(suite.files[0]).stem}.log"
    with serving(model, suite.root / "cache", *aliases, *suite.serve) as child:
        words = {"url": child.url, "port": child.url.rpartition(":")[2]}
        pairs = [entry.format(**words).split("=", 1) for entry in suite.environment]
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-p", "why", "-v",
                   "--tb", "native", "--timeout", str(TEST_S), "--continue-on-collection-errors",
                   *(option.format(**words) for option in suite.options), *files]  # fmt: skip
        if any("tool_use" in name for name in files):
            command += ["--models", "hermes"]  # One of theirs: all would be ours in the end.
        with log.open("w") as file:
            try:
                subprocess.run(
                    command, cwd=suite.root, stdout=file, stderr=file,
                    env=for_child(**dict(pairs)), timeout=SUITE_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                print(f"cut off after {SUITE_S} s")
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, word in RESULT.findall(log.read_text()):
        found[name][word] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=["llama.cpp", "vllm"])
    parser.add_argument("--source", type=Path, required=True, help="folder with their tests")
    parser.add_argument("--python", type=Path, required=True, help="python of their environment")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--only", default="", help="files whose path holds this")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="suites-")) / "suite"
    lay_out = llama_cpp if args.suite == "llama.cpp" else vllm
    total: Counter[str] = Counter()
    suites = lay_out(args.source, root)
    shutil.copy(HERE / "why.py", root)
    for suite in suites:
        found = run(suite, args.python.absolute(), args.model.resolve(), args.only)
        for name, words in sorted(found.items()):
            print(f"{name}: {', '.join(f'{count} {word}' for word, count in words.items())}")
            total += words
    print(f"together: {dict(total)}; reasons: {root / 'why.txt'}")


if __name__ == "__main__":
    main()
