"""An agent's turns on a real engine: what a turn costs is what is new in it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.clients.scripted_model import call_text, write_model
from tests.server.asgi import Json, client_of

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine
from kokuban.server.app import create_app
from kokuban.server.settings import ServerSettings

MARK: Json = {"cache_control": {"type": "ephemeral"}}
RULES = "You are an agent. You read files and you answer in short words. " * 8
QUESTION: Json = {"type": "text", "text": "What does main.py do?"}
CALL: Json = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "main.py"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "t1", "content": "print('hello')"}
TOOL: Json = {"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}}
TURNS: list[list[Json]] = [
    [{"role": "user", "content": [QUESTION | MARK]}],
    [
        {"role": "user", "content": "What does main.py do?"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [RESULT | MARK]},
    ],
]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    write_model(tmp_path / "model", call_text("read", CALL["input"]), "It says hello.")
    built = build_engine(
        tmp_path / "model",
        scheduler=SchedulerConfig(),
        runtime=RuntimeConfig(kv_memory_bytes=8 << 20, threads=1),
        served_name="m",
    )
    yield built
    await asyncio.to_thread(built.close)


async def usages(engine: Engine, *, keep_billing_line: bool) -> list[Json]:
    """Of each turn, with a billing line that changes."""
    answers = []
    app = create_app(engine, ServerSettings(keep_billing_line=keep_billing_line))
    async with client_of(app) as http:
        for number, messages in enumerate(TURNS):
            billing = f"x-anthropic-billing-header: cc_version=2.1.160; cch=a{number};"
            system = [{"type": "text", "text": billing}, {"type": "text", "text": RULES} | MARK]
            body = {"model": "m", "max_tokens": 9, "messages": messages, "system": system,
                    "tools": [TOOL]}  # fmt: skip
            response = await http.post("/v1/messages?beta=true", json=body)
            assert response.status_code == 200, response.text
            answers.append(response.json())
    [call], [said] = (answer["content"] for answer in answers)
    assert (call["name"], call["input"]) == ("read", CALL["input"])
    assert said == {"type": "text", "text": "It says hello."}
    return [answer["usage"] for answer in answers]


def prompt_tokens(usage: Json) -> int:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage[name] for name in names)


async def test_the_second_turn_finds_the_whole_first_one(engine: Engine) -> None:
    first, second = await usages(engine, keep_billing_line=False)

    assert first["cache_read_input_tokens"] == 0
    assert first["cache_creation_input_tokens"] > 0
    assert second["cache_read_input_tokens"] >= prompt_tokens(first) - 1
    assert prompt_tokens(second) > prompt_tokens(first)


async def test_with_the_billing_line_it_finds_nothing_behind_it(engine: Engine) -> None:
    """The tools stand in front; a byte is a token."""
    first, second = await usages(engine, keep_billing_line=True)

    assert 0 < second["cache_read_input_tokens"] < prompt_tokens(first) - len(RULES)
