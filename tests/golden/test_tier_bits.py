"""However KV has come to where it is read, the logits are those of a cold run, bit for bit.

Found in the pool, whole or to the middle of a block; given up in mid-answer and computed again, or
brought back from host memory; resumed from host memory, from disk, and from what a process before
this one has left there. Compared are the logits that each token is sampled from, the tokens and
their logprobs. Every KV dtype takes part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.golden.test_native_gguf import model_file
from tests.golden.tiered import Loaded, Said, Tiered
from tools.make_tiny_models import write_tiny_model

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.step import BlockLoad, BlockStore
from kokuban.plan.memory import blocks_needed

DISK_BYTES = 1 << 30
TOKEN_BUDGET = 64
MAX_FILLERS = 60


@dataclass(frozen=True, slots=True)
class Shape:
    """How large things are in the tests of one model."""

    length: int
    """Tokens of a prompt: more than a window, where there are windows."""

    preempted: tuple[int, int]
    """Tokens of a prompt and of an answer that is to be preempted: together more than a window."""

    max_context_tokens: int = 384
    threads: int = 1


SHAPES = {
    "llama": Shape(75, (75, 40)),
    "gemma3": Shape(75, (10, 60)),
    "smollm2": Shape(200, (200, 40), threads=2),
    "gemma": Shape(560, (490, 40), max_context_tokens=1024, threads=2),
}
TINY = [(name, dtype) for name in ("llama", "gemma3") for dtype in KV_DTYPES]
REAL = [
    pytest.param((name, dtype), marks=pytest.mark.models, id=f"{name}-{dtype}")
    for name in ("smollm2", "gemma")
    for dtype in KV_DTYPES
]


@dataclass(eq=False)
class Case:
    """One model with one KV dtype, and what it says when everything is computed."""

    model: Loaded
    kv_dtype: KvDtype
    shape: Shape
    cache: Path
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    @property
    def prompt_blocks(self) -> int:
        """Blocks of a prompt, an answer and a new turn, in each group."""
        return -(-(self.shape.length + 50) // 16)

    @property
    def tight_blocks(self) -> int:
        """A pool that admits three requests to be preempted, and is too small for their answers."""
        length, _ = self.shape.preempted
        needed = blocks_needed(self.model.program.kv, length, block_size=16, max_chunk=TOKEN_BUDGET)
        return 3 * (needed + self.num_groups)

    @property
    def num_groups(self) -> int:
        return len(self.model.program.kv.groups)

    def engine(self, **options: object) -> Tiered:
        chosen = {
            "kv_dtype": self.kv_dtype,
            "num_blocks": 8 * self.prompt_blocks * self.num_groups,
            "token_budget": TOKEN_BUDGET,
            "max_context_tokens": self.shape.max_context_tokens,
        }
        return Tiered(self.model, self.cache, **{**chosen, **options})  # type: ignore[arg-type]

    def tokens(self, count: int) -> list[int]:
        found: list[int] = self.rng.integers(0, 320, count).tolist()
        return found

    def cold(self, prompts: Sequence[Sequence[int]], max_tokens: int = 6) -> list[Said]:
        """Each alone, with no cache at all."""
        with self.engine(prefix_cache=False) as engine:
            found = [engine.ask(prompt, max_tokens) for prompt in prompts]
        assert all(said.usage.cached_tokens == 0 for said in found)
        return found


def same(found: Said, cold: Said) -> None:
    assert found.tokens == cold.tokens
    assert found.digests == cold.digests, "other logits"
    assert found.logprobs == cold.logprobs
    assert len(cold.digests) == len(cold.tokens)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Loaded]]:
    """Models by name; the latest one is kept."""
    folder = tmp_path_factory.mktemp("models")
    loaded: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in loaded:
            loaded.clear()
            tiny = name in ("llama", "gemma3")
            path = (
                write_tiny_model(folder, name, form="gguf", dtype="q8_0")
                if tiny
                else model_file(name)
            )
            loaded[name] = Loaded.open(path, SHAPES[name].threads)
        return loaded[name]

    yield get
    loaded.clear()


@pytest.fixture(params=[*TINY, *REAL], ids=lambda param: "-".join(param))
def case(request: pytest.FixtureRequest, load: Callable[[str], Loaded], tmp_path: Path) -> Case:
    name, kv_dtype = request.param
    return Case(load(name), kv_dtype, SHAPES[name], tmp_path)


def push_out(engine: Tiered, case: Case, text: Sequence[int], *, to_disk: bool) -> None:
    """Ask for other things until nothing of a text is in the pool, or only the disk has it."""
    manager = engine.memory.manager
    for _ in range(MAX_FILLERS):
        found = manager.find_cached_prefix(manager.make_chain(""), text, disk=True)
        blocks = sum(block != -1 for group in found.block_ids for block in group)
        blocks += len(found.tail_sources)
        assert blocks, "a tier has lost what it was to keep"
        if (found.num_on_disk if to_disk else found.num_below) == blocks:
            return
        engine.ask(case.tokens(case.shape.length), 1)
        engine.settle()
    raise AssertionError(f"{MAX_FILLERS} other prompts push nothing out")


def test_found_in_the_pool(case: Case) -> None:
    """A whole prompt but for its last token, and a beginning that ends inside a block."""
    first = case.tokens(case.shape.length)
    inside = [*first[: case.shape.length - 9], *case.tokens(20)]
    cold = case.cold([first, inside])
    follow = [*first, *cold[0].tokens, *case.tokens(13)]
    cold += case.cold([follow])
    assert len(inside[: case.shape.length - 9]) % 16

    with case.engine() as engine:
        found = [engine.ask(prompt) for prompt in (first, first, inside, follow)]

    for said, expected in zip(found, (cold[0], cold[0], cold[1], cold[2]), strict=True):
        same(said, expected)
    length = case.shape.length
    cached = [said.usage.cached_tokens for said in found]
    assert cached == [0, length - 1, length - 9, length + 5]
    assert engine.moved["BlockCopy"] >= 2 * case.num_groups


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_preempted_and_computed_again(case: Case, prefix_cache: bool) -> None:
    length, max_tokens = case.shape.preempted
    prompts = [case.tokens(length - i) for i in range(3)]
    cold = case.cold(prompts, max_tokens)

    with case.engine(num_blocks=case.tight_blocks, prefix_cache=prefix_cache) as engine:
        found = engine.together(prompts, max_tokens)

    for said, expected in zip(found, cold, strict=True):
        same(said, expected)
    assert engine.moved["preempted"] > 0, "the pool was large enough: the test shows nothing"
    assert sum(said.usage.recomputed_tokens for said in found) > 0
    assert engine.moved["BlockLoad"] == 0


def test_preempted_and_brought_back_from_host_memory(case: Case) -> None:
    length, max_tokens = case.shape.preempted
    prompts = [case.tokens(length - i) for i in range(3)]
    cold = case.cold(prompts, max_tokens)
    room = 2 * case.tight_blocks

    with case.engine(num_blocks=case.tight_blocks, ram_blocks=room) as engine:
        found = engine.together(prompts, max_tokens)

    for said, expected in zip(found, cold, strict=True):
        same(said, expected)
    assert engine.moved["preempted"] > 0, "the pool was large enough: the test shows nothing"
    assert engine.moved[BlockStore.__name__] > 0
    assert engine.moved[BlockLoad.__name__] > 0
    # What a request had computed when it gave way came back whole, but for its last token.
    for said in found:
        assert said.usage.recomputed_tokens <= said.usage.preemptions * 16


def test_resumed_from_host_memory_from_disk_and_after_a_restart(case: Case) -> None:
    first = case.tokens(case.shape.length)
    [cold_first] = case.cold([first])
    said = [*first, *cold_first.tokens]
    turns = [[*said, *case.tokens(num_new)] for num_new in (1, 9, 30)]
    cold = case.cold(turns)
    # Of the conversation all but the token that was said last has been computed.
    known = len(said) - 1
    room = {
        "num_blocks": (case.prompt_blocks + 2) * case.num_groups,
        "ram_blocks": 2 * case.prompt_blocks * case.num_groups,
        "disk_bytes": DISK_BYTES,
    }

    with case.engine(**room) as engine:
        same(engine.ask(first), cold_first)
        engine.settle()
        push_out(engine, case, turns[0], to_disk=False)
        from_ram = engine.ask(turns[0])
        same(from_ram, cold[0])
        assert from_ram.usage.cached_tokens == known
        # Other prompts of many groups may have pushed a part of it down to the disk.
        below = from_ram.usage.cached_ram_tokens + from_ram.usage.cached_disk_tokens
        assert (below, from_ram.usage.cached_ram_tokens > 0) == (known, True)

        engine.settle()
        push_out(engine, case, turns[1], to_disk=True)
        from_disk = engine.ask(turns[1])
        same(from_disk, cold[1])
        assert (from_disk.usage.cached_tokens, from_disk.usage.cached_disk_tokens) == (known, known)

    with case.engine(**room) as engine:
        restarted = engine.ask(turns[2])
        same(restarted, cold[2])
        assert restarted.usage.cached_disk_tokens == restarted.usage.cached_tokens >= known
        again = engine.ask(first)
        same(again, cold_first)
        # A window group keeps what goes on at the end of a text only.
        windows = [group.window for group in case.model.program.kv.groups]
        expected = 0 if any(windows) else len(first) - 1
        assert again.usage.cached_tokens == expected


def test_every_tier_off_and_on_gives_one_answer_to_one_conversation(case: Case) -> None:
    """Four turns in three engines: without cache, with a pool that forgets, with all tiers."""
    answers: list[list[tuple[object, ...]]] = []
    rng_state = case.rng.bit_generator.state
    kv, length = case.model.program.kv, case.shape.length
    needed = blocks_needed(kv, length + 20, block_size=16, max_chunk=TOKEN_BUDGET)
    for options in (
        {"prefix_cache": False},
        {"num_blocks": needed + case.num_groups},
        {
            "num_blocks": needed + case.num_groups,
            "ram_blocks": 600,
            "disk_bytes": DISK_BYTES,
        },
    ):
        case.rng.bit_generator.state = rng_state
        with case.engine(**options) as engine:
            text: list[int] = case.tokens(case.shape.length - 40)
            proofs = []
            for _ in range(4):
                text += case.tokens(10)
                said = engine.ask(text, 5)
                proofs.append(said.proof)
                text += said.tokens
                # Somebody else takes the pool meanwhile.
                engine.ask(case.tokens(case.shape.length), 1)
            answers.append(proofs)
    assert engine.moved[BlockLoad.__name__] > 0

    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
