"""How each agent CLI is configured for a server, started with a question, and what it can be made
to call: the tool is harmless, and its name and arguments are the agent's own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTION = "Look at the files here, then say how many there are."
KEY = "k"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent."""

    name: str
    program: str
    """In the folder of programs."""

    tool: str
    """A tool of its own, that it uses without asking; "": it has none."""

    arguments: Mapping[str, Any]

    prepare: Callable[[Path, str], None]
    """Write its configuration into a home directory, for a server's address."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """`{url}` stands for the server's address."""

    short: bool = False
    """Its first prompt fits half of 4,096 tokens."""


def _nothing(home: Path, url: str) -> None:
    pass


def _opencode(home: Path, url: str) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {"m": {"limit": {"context": 131_072, "output": 4096}}},
    }
    (home / "work" / "opencode.json").write_text(json.dumps({"provider": {"local": provider}}))


def _codex(home: Path, url: str) -> None:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        f'model = "m"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
        f'base_url = "{url}/v1"\nenv_key = "LOCAL_KEY"\nwire_api = "responses"\n'
    )


def _pi(home: Path, url: str) -> None:
    (home / ".pi" / "agent").mkdir(parents=True)
    model = {
        "id": "m",
        "name": "m",
        "reasoning": False,
        "input": ["text"],
        "contextWindow": 131_072,
        "maxTokens": 4096,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": f"{url}/v1",
        "api": "openai-completions",
        "apiKey": KEY,
        "models": [model],
    }
    (home / ".pi" / "agent" / "models.json").write_text(
        json.dumps({"providers": {"local": provider}})
    )


def _continue(home: Path, url: str) -> None:
    (home / "config.yaml").write_text(
        "name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: m\n    provider: openai\n"
        f"    model: m\n    apiBase: {url}/v1\n    apiKey: {KEY}\n    roles: [chat]\n"
        "    capabilities: [tool_use]\n"
    )


AGENTS = (
    Agent(
        name="qwen-code",
        program="qwen",
        tool="list_directory",
        arguments={"path": "{work}"},
        prepare=_nothing,
        command=("--auth-type", "openai", "-m", "m", "-p", QUESTION),
        environment={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "{url}/v1", "OPENAI_MODEL": "m"},
    ),
    Agent(
        name="opencode",
        program="opencode",
        tool="glob",
        arguments={"pattern": "*"},
        prepare=_opencode,
        command=("run", "-m", "local/m", QUESTION),
        environment={"OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        name="codex",
        program="codex",
        tool="exec_command",
        arguments={"cmd": "ls"},
        prepare=_codex,
        command=("exec", "--skip-git-repo-check", "-s", "read-only", QUESTION),
        environment={"LOCAL_KEY": KEY},
    ),
    Agent(
        name="pi",
        program="pi",
        tool="bash",
        arguments={"command": "ls"},
        prepare=_pi,
        command=("-p", "--provider", "local", "--model", "m", "--no-session", QUESTION),
        environment={"PI_OFFLINE": "1"},
        short=True,
    ),
    Agent(
        name="continue",
        program="cn",
        tool="List",
        arguments={"dirpath": "."},
        prepare=_continue,
        command=("-p", "--config", "{home}/config.yaml", QUESTION),
        environment={},
        short=True,
    ),
    Agent(
        name="aider",
        program="aider",
        tool="",
        arguments={},
        prepare=_nothing,
        command=(
            "--model",
            "openai/m",
            "--no-check-update",
            "--no-show-model-warnings",
            "--no-git",
            "--yes-always",
            "--no-analytics",
            "--no-pretty",
            "--message",
            QUESTION,
            "a.txt",
        ),
        environment={"OPENAI_API_KEY": KEY, "OPENAI_API_BASE": "{url}/v1"},
        short=True,
    ),
)
