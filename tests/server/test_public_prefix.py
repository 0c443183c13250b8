"""What the operator made public is computed once for all tenants, and nothing else is."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tools.make_tiny_models import write_tiny_model

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import ConfigError
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine
from kokuban.engine.generation import generate

SYSTEM = "You answer in short and plain words, and you never promise what you cannot keep. " * 3
PARAMS = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("m"), "llama", form="gguf", dtype="q8_0")


@pytest.fixture
async def engine(model: Path) -> AsyncIterator[Engine]:
    built = build_engine(
        model,
        scheduler=SchedulerConfig(),
        runtime=RuntimeConfig(kv_memory_bytes=8 << 20, threads=1, public_prefixes=(SYSTEM,)),
    )
    yield built
    await asyncio.to_thread(built.close)


async def cached(engine: Engine, tenant: str, prompt: list[int]) -> int:
    usage = None
    async for delta in generate(engine.client, engine.tokenizer, prompt, PARAMS, tenant=tenant):
        usage = delta.usage or usage
    assert usage is not None
    return usage.cached_tokens


async def test_tenants_share_the_public_text_to_its_last_whole_block(engine: Engine) -> None:
    public = engine.tokenizer.encode(SYSTEM, add_bos=True, parse_special=True)
    whole = len(public) // 16 * 16
    assert whole >= 48
    question = engine.tokenizer.encode("What is it?", add_bos=False, parse_special=True) * 20

    assert await cached(engine, "one", [*public, *question]) == 0
    assert await cached(engine, "two", [*public, *question]) == whole
    assert await cached(engine, "two", [*public, *question]) == len(public) + len(question) - 1


async def test_what_is_not_public_stays_with_its_tenant(engine: Engine) -> None:
    private = engine.tokenizer.encode(
        "Another secret text. " * 20, add_bos=True, parse_special=True
    )

    assert await cached(engine, "one", private) == 0
    assert await cached(engine, "two", private) == 0


def test_an_empty_public_text_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="a public prefix is empty"):
        build_engine(
            model,
            scheduler=SchedulerConfig(),
            runtime=RuntimeConfig(kv_memory_bytes=8 << 20, threads=1, public_prefixes=(" ",)),
        )
