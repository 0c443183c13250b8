"""What `kokuban serve` loads until it is ready: nothing that only some requests or options need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tools.make_tiny_models import write_tiny_model

SERVE = """
import json, sys
import kokuban.server.run as run

def stand_in(engine, settings, sock, *more, **named):
    run.create_app(engine, settings)
    print("loaded", json.dumps(sorted(sys.modules)))
    return 0

run.run_server = stand_in
sys.argv = ["kokuban", "serve", sys.argv[1], "--port", "0", "--kv-memory", "8MiB"]
from kokuban.cli import main
main()
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of a process that would begin to listen now."""
    path: Path = write_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", form="gguf")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("loaded ")]
    return set(json.loads(line.removeprefix("loaded ")))


def test_the_server_and_the_engine_are_among_them(loaded: set[str]) -> None:
    """What guards the test below: it looks at the right process at the right time."""
    assert {"kokuban.server.app", "kokuban.engine.core", "tokenizers", "numpy"} <= loaded


@pytest.mark.parametrize(
    "name",
    [
        "anthropic",
        "fastapi",
        "httpx",
        "huggingface_hub",
        "jinja2",
        "jsonschema",
        "kokuban.bench",
        "kokuban.cli.bench",
        "kokuban.cli.cache",
        "kokuban.cli.talk",
        "kokuban.engine.process",
        "kokuban.engine.speculation",
        "kokuban.runner.drafter",
        "kokuban.server.batch",
        "kokuban.server.chat",
        "kokuban.server.description",
        "kokuban.server.faces",
        "kokuban.server.openai_models",
        "kokuban.simulate",
        "kokuban.text.hf_tokenizer",
        "kokuban.text.json_schema",
        "kokuban.weights.hub",
        "kokuban.weights.quantize",
        "kokuban.weights.registry",
        "kokuban.weights.wheels",
        "llguidance",
        "openai",
        "opentelemetry",
        "pydantic",
        "rich",
        "safetensors",
        "schemathesis",
        "sqlite3",
        "statistics",
        "tomllib",
        "torch",
        "transformers",
        "typer",
        "zmq",
    ],
)
def test_what_a_plain_start_does_not_need_is_not_loaded(name: str, loaded: set[str]) -> None:
    assert name not in loaded
