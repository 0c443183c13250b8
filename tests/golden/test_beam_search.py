"""Beam search against a reference that computes every sequence from its start."""

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model

from kokuban import LLM
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.request import FinishReason
from kokuban.engine.beam import Beam, beam_search

PROMPT = np.random.default_rng(51).integers(0, 320, 43).tolist()
RUNTIME = RuntimeConfig(kv_memory_bytes=2**25, threads=1)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beam")
    return write_tiny_model(folder, request.param, form="gguf", dtype="q8_0")


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, runtime=RUNTIME) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(path: Path) -> NativeModel:
    return NativeModel(path, num_blocks=20_000)


def reference(
    model: NativeModel,
    width: int,
    max_tokens: int,
    length_penalty: float,
    ends: Collection[int] = (),
) -> list[tuple[tuple[int, ...], float, float]]:
    """(tokens, logprob, score), best first. Never stops early and looks at the whole vocabulary."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, float, tuple[int, ...]]] = []
    for length in range(1, max_tokens + 1):
        every = []
        for logprob, tokens in live:
            logits = model.logits([*PROMPT, *tokens])[-1].astype(np.float64)
            shifted = logits - logits.max()
            logprobs = shifted - np.log(np.exp(shifted).sum())
            every += [
                (logprob + float(more), (*tokens, token)) for token, more in enumerate(logprobs)
            ]
        every.sort(key=lambda pair: -pair[0])
        live = []
        for rank, (logprob, tokens) in enumerate(every):
            if tokens[-1] in ends or length == max_tokens:
                if rank < 2 * width:
                    ended.append((logprob / length**length_penalty, logprob, tokens))
            elif len(live) < width:
                live.append((logprob, tokens))
        if not live:
            break
    ended.sort(key=lambda each: -each[0])
    return [(tokens, logprob, score) for score, logprob, tokens in ended[:width]]


@pytest.mark.parametrize(("width", "max_tokens"), [(1, 8), (3, 6), (10, 1), (10, 3)])
def test_beams_are_those_of_a_search_without_a_cache(
    llm: LLM, model: NativeModel, width: int, max_tokens: int
) -> None:
    expected = reference(model, width, max_tokens, 1.0)

    found = llm.beam_search(PROMPT, width, max_tokens, ignore_eos=True)

    assert [beam.token_ids for beam in found] == [tokens for tokens, _, _ in expected]
    for beam, (_tokens, logprob, score) in zip(found, expected, strict=True):
        assert beam.logprob == pytest.approx(logprob, abs=1e-4)
        assert beam.score == pytest.approx(score, abs=1e-4)
        assert beam.finish is FinishReason.LENGTH
        assert beam.text == llm.engine.tokenizer.decode(
            beam.token_ids, skip_special=True, continues=True
        )


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 3.0])
def test_beams_that_end_are_ranked_with_those_that_go_on(
    llm: LLM, model: NativeModel, length_penalty: float
) -> None:
    # Tokens that beams reach at different lengths, so that some end early and some do not.
    plain = reference(model, 4, 6, 1.0)
    ends = {plain[0][0][3], plain[1][0][1]}
    expected = reference(model, 4, 6, length_penalty, ends)

    found = asyncio.run(
        beam_search(
            llm.engine.client,
            PROMPT,
            beam_width=4,
            max_tokens=6,
            length_penalty=length_penalty,
            end_token_ids=ends,
        )
    )

    assert [beam.token_ids for beam in found] == [tokens for tokens, _, _ in expected]
    assert length_penalty > 0 or any(beam.finish is FinishReason.STOP for beam in found)
    for beam in found:
        assert (beam.finish is FinishReason.STOP) == (beam.token_ids[-1] in ends)


def test_each_step_computes_one_token_for_each_beam(path: Path) -> None:
    with LLM(path, runtime=RUNTIME) as llm:
        llm.beam_search(PROMPT, 5, 21, ignore_eos=True)
        stats = llm.engine.client.stats()

    assert stats.steps == 21
    assert stats.prompt_tokens - stats.cached_tokens == len(PROMPT) + 5 * 20


def test_without_the_cache_the_beams_are_the_same(llm: LLM, path: Path) -> None:
    with LLM(path, runtime=RUNTIME, scheduler=SchedulerConfig(prefix_cache=False)) as cold:
        expected = cold.beam_search(PROMPT, 3, 5, ignore_eos=True)

    assert llm.beam_search(PROMPT, 3, 5, ignore_eos=True) == expected


@pytest.mark.parametrize(
    ("width", "max_tokens", "length_penalty", "param"),
    [
        (0, 5, 1.0, "beam_width"),
        (11, 5, 1.0, "beam_width"),
        (2, 0, 1.0, "max_tokens"),
        (2, 5, float("nan"), "length_penalty"),
        (2, 5, 11.0, "length_penalty"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(
    llm: LLM, width: int, max_tokens: int, length_penalty: float, param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.beam_search(PROMPT, width, max_tokens, length_penalty)

    assert caught.value.param == param


def test_a_prompt_that_holds_no_token_or_an_unknown_one_is_refused(llm: LLM) -> None:
    for prompt in ([], [5000]):
        with pytest.raises(RequestError):
            llm.beam_search(prompt, 2, 2)


def test_the_score_divides_by_the_length_to_the_power_of_the_penalty() -> None:
    beam = Beam((1, 2, 3, 4), -6.0)

    assert [beam.score(penalty) for penalty in (0.0, 1.0, 0.5, -1.0)] == [-6.0, -1.5, -3.0, -24.0]
