"""Speculation changes no token and no logprob, bit for bit: greedy or sampled, whatever it guesses.

Each case runs the same requests without guesses and with them, through the real kernels. Logprobs
are functions of all logits of a row, so that equal ones mean equal rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.golden.tiered import Loaded, Said, Tiered
from tools.make_tiny_models import write_tiny_model

from kokuban import LLM
from kokuban.core.config import KV_DTYPES, KvDtype, RuntimeConfig
from kokuban.core.errors import ConfigError, ModelError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.speculation import Offer, Proposer, Wanted
from kokuban.core.step import SampledToken
from kokuban.engine.kv_memory import make_layout
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.storage import KvStorage
from kokuban.runner.drafter import DraftModel
from kokuban.runner.native import NativeExecutor
from kokuban.scheduler.ngram import NgramProposer

RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, 320, length).tolist() for length in (37, 5, 90)]
NUM_NEW = 40

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True, logprobs=3)
KINDS: dict[str, SamplingParams] = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=0.9, top_p=0.95, top_k=50, seed=3),
    "penalties": replace(
        GREEDY, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2
    ),
    "sampled with penalties": replace(
        GREEDY, temperature=1.2, min_p=0.01, repetition_penalty=1.1, logit_bias={7: 3.0, 9: -2.0}
    ),
    "min_tokens": replace(GREEDY, min_tokens=20, stop_token_ids=(11,)),
}

Load = Callable[[str], Loaded]


class Oracle:
    """Knows what was said without guesses, and guesses so often right.

    Args:
        said: prompt and answer of each request.
        percent: how many of the guesses are right.
    """

    chances = (0.7,)

    def __init__(self, said: Sequence[Sequence[int]], percent: int) -> None:
        self._said = [tuple(tokens) for tokens in said]
        self._percent = percent
        self._draw = np.random.default_rng(percent)

    def offer(self, request_id: RequestId, token_ids: Sequence[int], most: int) -> Offer:
        return Offer(most)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        return [self._guess(tuple(each.token_ids), each.num_tokens) for each in wanted]

    def _guess(self, token_ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        [known, *_] = [each for each in self._said if each[: len(token_ids)] == token_ids]
        guesses = known[len(token_ids) : len(token_ids) + count]
        wrong = self._draw.integers(0, 100, len(guesses)) >= self._percent
        return tuple(
            (token + 1) % 320 if is_wrong else token
            for token, is_wrong in zip(guesses, wrong, strict=True)
        )

    def round_s(self, num_requests: int, context_tokens: int) -> float:
        return 0.0

    def forget(self, request_id: RequestId) -> None:
        pass

    def close(self) -> None:
        pass


def draft_model(model: Loaded, num_blocks: int = 128, kv_dtype: KvDtype = "bf16") -> DraftModel:
    """A model that guesses, with a pool of its own."""
    kv = model.program.kv
    layout = make_layout(kv, 16, RuntimeConfig(kv_dtype=kv_dtype))
    executor = NativeExecutor(
        model.program,
        model.weights,
        KvStorage(layout, num_blocks),
        pool=model.pool,
        max_context_tokens=384,
    )
    windows = [group.window for group in kv.groups]
    manager = Manager(BlockPool(num_blocks), block_size=16, windows=windows)
    return DraftModel(executor, manager, max_context_tokens=384, decode_s=lambda *_: 0.0)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def make(variant: str) -> Loaded:
        return Loaded.open(write_tiny_model(folder, variant, form="gguf", dtype="q8_0"))

    return make


def run(
    model: Loaded,
    folder: Path,
    params: SamplingParams,
    proposer: Proposer | None = None,
    *,
    kv_dtype: KvDtype = "bf16",
    num_blocks: int = 128,
    ram_blocks: int = 0,
) -> list[Said]:
    """All prompts together, in a pool that is empty at the end."""
    with Tiered(
        model,
        folder,
        kv_dtype=kv_dtype,
        num_blocks=num_blocks,
        ram_blocks=ram_blocks,
        prefix_cache=ram_blocks > 0,
        proposer=proposer,
    ) as engine:
        said = engine.together(PROMPTS, params=dict.fromkeys(range(len(PROMPTS)), params))
        assert engine.memory.manager.num_free == num_blocks
        return said


def texts(said: Sequence[Said]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(each.tokens, each.logprobs) for each in said]


def sequences(said: Sequence[Said]) -> list[list[int]]:
    return [[*prompt, *each.tokens] for prompt, each in zip(PROMPTS, said, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_guesses_of_any_quality_change_nothing(kind: str, load: Load, tmp_path: Path) -> None:
    params = KINDS[kind]
    plain = run(load("llama"), tmp_path, params)

    for percent in (0, 60, 100):
        oracle = Oracle(sequences(plain), percent)
        said = run(load("llama"), tmp_path, params, oracle)
        assert texts(said) == texts(plain)
        rights = [each.usage.accepted_tokens / each.usage.drafted_tokens for each in said]
        assert (min(rights), max(rights)) == (percent / 100,) * 2 or percent == 60


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_no_kv_dtype_and_no_window_is_an_exception(
    variant: str, kv_dtype: KvDtype, load: Load, tmp_path: Path
) -> None:
    plain = run(load(variant), tmp_path, GREEDY, kv_dtype=kv_dtype)

    oracle = Oracle(sequences(plain), 60)
    said = run(load(variant), tmp_path, GREEDY, oracle, kv_dtype=kv_dtype)

    assert texts(said) == texts(plain)
    assert all(0 < each.usage.accepted_tokens < each.usage.drafted_tokens for each in said)


@pytest.mark.parametrize("ram_blocks", [0, 40])
def test_preemption_by_recompute_and_by_swap_changes_nothing(
    ram_blocks: int, load: Load, tmp_path: Path
) -> None:
    plain = run(load("llama"), tmp_path / "plain", GREEDY)

    oracle = Oracle(sequences(plain), 70)
    said = run(
        load("llama"), tmp_path / "few", GREEDY, oracle, num_blocks=13, ram_blocks=ram_blocks
    )

    assert texts(said) == texts(plain)
    assert sum(each.usage.preemptions for each in said) > 0
    assert sum(each.usage.accepted_tokens for each in said) > 0


def test_a_newcomer_gets_the_blocks_that_wrong_drafts_had(load: Load, tmp_path: Path) -> None:
    """The first request crosses into a block that drafts had before; then all others are filled."""
    short, long = PROMPTS[1] * 2, PROMPTS[2] * 2
    params = {0: replace(GREEDY, max_tokens=60)}

    def ask(proposer: Proposer | None) -> list[SampledToken]:
        said: list[SampledToken] = []
        with Tiered(
            load("llama"), tmp_path, num_blocks=16, prefix_cache=False, proposer=proposer
        ) as engine:
            first = Request(id=RequestId("first"), prompt_token_ids=tuple(short), params=params[0])
            other = Request(
                id=RequestId("other"),
                prompt_token_ids=tuple(long),
                params=replace(GREEDY, max_tokens=1),
            )
            engine.core.add([first])
            for _ in range(20):
                said += [token for event in engine.core.step() for token in event.tokens]
            engine.core.add([other])
            while engine.scheduler.has_requests:
                for event in engine.core.step():
                    said += event.tokens if event.request_id == "first" else ()
        return said

    plain = ask(None)

    assert ask(Oracle([[*short, *(token.token_id for token in plain)]], 0)) == plain


def test_more_rows_than_a_tile_of_the_head_change_nothing(load: Load, tmp_path: Path) -> None:
    """Seven requests with up to 17 rows each; a tile has 64, and cuts no chunk with drafts."""
    prompts = [[*PROMPTS[0][: 4 + i], i] for i in range(7)]
    params = dict.fromkeys(range(7), KINDS["sampled"])

    def ask(proposer: Proposer | None) -> list[Said]:
        with Tiered(
            load("llama"), tmp_path, prefix_cache=False, max_running=8, token_budget=256,
            proposer=proposer,
        ) as engine:  # fmt: skip
            return engine.together(prompts, params=params)

    plain = ask(None)
    known = [[*prompt, *each.tokens] for prompt, each in zip(prompts, plain, strict=True)]

    assert texts(ask(Oracle(known, 90))) == texts(plain)


def test_prompt_lookup_changes_nothing(load: Load, tmp_path: Path) -> None:
    for kind in ("greedy", "sampled"):
        plain = run(load("llama"), tmp_path, KINDS[kind])
        said = run(load("llama"), tmp_path, KINDS[kind], NgramProposer())
        assert texts(said) == texts(plain)


def test_company_changes_nothing(load: Load, tmp_path: Path) -> None:
    model = load("llama")
    together = run(model, tmp_path, KINDS["sampled"], NgramProposer())

    for i, prompt in enumerate(PROMPTS[:1]):
        with Tiered(
            model, tmp_path, num_blocks=128, prefix_cache=False, proposer=NgramProposer()
        ) as engine:
            alone = engine.together([prompt], params={0: KINDS["sampled"]})
        assert texts(alone) == texts(together[i : i + 1])


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_the_same_model_guesses_everything_right(variant: str, load: Load, tmp_path: Path) -> None:
    plain = run(load(variant), tmp_path, GREEDY)

    drafter = draft_model(load(variant))
    said = run(load(variant), tmp_path, GREEDY, drafter)

    assert texts(said) == texts(plain)
    for each in said:
        assert each.usage.drafted_tokens == each.usage.accepted_tokens > 25
    drafter.check()


def test_another_model_guesses_wrong_and_changes_nothing(load: Load, tmp_path: Path) -> None:
    for kind in ("greedy", "sampled"):
        plain = run(load("llama"), tmp_path, KINDS[kind])
        drafter = draft_model(load("qwen2"))
        said = run(load("llama"), tmp_path, KINDS[kind], drafter)
        assert texts(said) == texts(plain)
        drafted = sum(each.usage.drafted_tokens for each in said)
        assert drafted > sum(each.usage.accepted_tokens for each in said)
        drafter.check()


def test_a_draft_model_with_a_small_pool_guesses_for_whom_it_can(
    load: Load, tmp_path: Path
) -> None:
    plain = run(load("llama"), tmp_path, GREEDY)

    drafter = draft_model(load("llama"), num_blocks=7)
    said = run(load("llama"), tmp_path, GREEDY, drafter)

    assert texts(said) == texts(plain)
    assert sum(each.usage.accepted_tokens for each in said) > 0
    drafter.check()


def test_choices_of_one_prompt_go_their_own_ways(load: Load, tmp_path: Path) -> None:
    def choices(proposer: Proposer | None) -> dict[RequestId, list[SampledToken]]:
        params = KINDS["sampled"]
        found: dict[RequestId, list[SampledToken]] = {
            RequestId(f"c{choice}"): [] for choice in range(4)
        }
        with Tiered(load("llama"), tmp_path, num_blocks=128, proposer=proposer) as engine:
            engine.core.add(
                [
                    Request(
                        id=name,
                        prompt_token_ids=tuple(PROMPTS[0]),
                        params=params,
                        seed=7,
                        choice=choice,
                    )
                    for choice, name in enumerate(found)
                ]
            )
            while not engine.core.idle:
                for event in engine.core.step():
                    found[event.request_id] += event.tokens
                engine.scheduler.check()
        return found

    plain = choices(None)

    assert choices(NgramProposer()) == plain
    assert choices(draft_model(load("llama"))) == plain
    assert len({tuple(tokens) for tokens in plain.values()}) == 4


def test_an_engine_is_built_with_either_kind(tmp_path: Path) -> None:
    """Through the composition root: the pools share one budget, the receipts tell."""
    llama = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")
    runtime = RuntimeConfig(kv_memory_bytes=2**22, threads=1)
    prompts = [PROMPTS[1] * 8, PROMPTS[0], PROMPTS[2]]
    params = [replace(each, max_tokens=150) for each in list(KINDS.values())[:3]]

    def ask(speculate: str) -> tuple[list[object], int, int]:
        with LLM(llama, runtime=replace(runtime, speculate=speculate)) as llm:
            outputs = llm.generate(prompts, params)
            choices = [output.choices[0] for output in outputs]
            drafted = sum(choice.usage.drafted_tokens for choice in choices if choice.usage)
            assert llm.engine.client.info.speculate == speculate
            assert llm.engine.client.stats().drafted_tokens == drafted
            return (
                [(choice.text, choice.tokens, choice.finish) for choice in choices],
                drafted,
                llm.engine.client.info.kv_pool_bytes,
            )

    plain, nothing, pool_bytes = ask("")
    for speculate in ("ngram", str(llama)):
        said, drafted, own_bytes = ask(speculate)
        assert said == plain
        # A draft model as slow as its target does not pay; it is tried now and then.
        assert drafted > nothing == 0
        shared = pool_bytes if speculate == "ngram" else pool_bytes // 2
        assert own_bytes == pytest.approx(shared, abs=2**13), "within one block"


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    llama = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")
    other = tmp_path / "other.gguf"
    data = llama.read_bytes()
    other.write_bytes(data.replace(b"</tool_call>", b"</work_call>", 1))

    with pytest.raises(ConfigError, match="it has '</work_call>' as token 261, not '</tool_call>'"):
        LLM(llama, runtime=RuntimeConfig(threads=1, speculate=str(other)))


def test_a_draft_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    llama = write_tiny_model(tmp_path, "llama", form="gguf", dtype="q8_0")

    with pytest.raises(ModelError, match="there is no such file"):
        LLM(llama, runtime=RuntimeConfig(threads=1, speculate=str(tmp_path / "none.gguf")))
