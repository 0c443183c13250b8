"""What `kokuban bench kv-quant` measures, on a tiny model: its figures follow from the logits."""

import gc
import math
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model

from kokuban.core.config import KvDtype
from kokuban.core.errors import ConfigError
from kokuban.engine.kv_quant import KvQuantConfig, cut_prompts, cut_windows, measure
from kokuban.engine.trial import Model, Trial, load_model

TEXT = "The quick brown fox jumps over the lazy dog. " * 40
SMALL = KvQuantConfig(
    dtypes=("int8", "fp8_e4m3"),
    num_tokens=128,
    window=32,
    num_prompts=3,
    prompt_tokens=16,
    answer_tokens=8,
    context=64,
    batch=2,
    rounds=3,
)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("tiny"), request.param, form="gguf", dtype="q8_0"
    )


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(str(path), threads=1)


def logprobs(path: Path, token_ids: list[int], kv_dtype: KvDtype) -> np.ndarray:
    logits = NativeModel(path, kv_dtype=kv_dtype).logits(token_ids).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_perplexity_and_agreement_are_those_of_the_logits(path: Path, model: Model) -> None:
    windows = cut_windows(model.tokenizer, TEXT, SMALL)
    prompts = cut_prompts(model.tokenizer, TEXT, SMALL)
    longest = SMALL.prompt_tokens + SMALL.answer_tokens
    trial = Trial(model, "bf16", num_requests=3, num_tokens=longest)
    answers = trial.answer(prompts, SMALL.answer_tokens)

    found = {each.dtype: each for each in measure(model, TEXT, SMALL)}

    assert list(found) == ["bf16", "int8", "fp8_e4m3"]
    by_dtype: dict[str, list[float]] = {}
    for dtype, figures in found.items():
        known: list[float] = []
        for window in windows:
            rows = logprobs(path, window, dtype)
            known += [rows[i, token] for i, token in enumerate(window[1:])]
        assert len(known) == len(windows) * (SMALL.window - 1)
        assert figures.perplexity == pytest.approx(math.exp(-np.mean(known)), rel=1e-5)
        by_dtype[dtype] = known
        lost = np.array(by_dtype["bf16"]) - known
        assert figures.change == pytest.approx(math.exp(lost.mean()) - 1, abs=1e-6)
        error = math.exp(lost.mean()) * lost.std(ddof=1) / math.sqrt(len(lost))
        assert figures.change_error == pytest.approx(error, abs=1e-6)
        said = []
        for prompt, answer in zip(prompts, answers, strict=True):
            best = logprobs(path, [*prompt, *answer], dtype)[len(prompt) - 1 : -1].argmax(axis=1)
            said.append([int(a) == b for a, b in zip(best, answer, strict=True)])
        assert figures.agreement == pytest.approx(np.mean(said))
        assert figures.common_tokens == pytest.approx(
            np.mean([[*each, False].index(False) for each in said])
        )
        assert figures.step_s > 0
        assert figures.speedup > 0
    assert found["bf16"].agreement == 1
    assert found["bf16"].common_tokens == SMALL.answer_tokens
    assert found["int8"].perplexity != found["bf16"].perplexity
    assert found["int8"].bytes_per_token == model.program.kv.bytes_per_token("int8")
    assert found["int8"].bytes_per_token < found["bf16"].bytes_per_token


def test_a_greedy_answer_is_what_the_model_finds_likeliest(path: Path, model: Model) -> None:
    [prompt] = cut_prompts(model.tokenizer, TEXT, SMALL)[:1]
    trial = Trial(model, "int8", num_requests=2, num_tokens=40)

    answer, again = trial.answer([prompt, prompt], 6)

    known = list(prompt)
    for token in answer:
        assert logprobs(path, known, "int8")[-1].argmax() == token
        known.append(token)
    assert again == answer


def test_timed_steps_go_on_from_the_context_behind_a_window(model: Model) -> None:
    trial = Trial(model, "int8", num_requests=2, num_tokens=200, first_token=190)
    trial.start_anywhere()

    assert all(trial.time_step() > 0 for _ in range(9))


def test_a_trial_that_nobody_holds_gives_its_pool_back_at_once(model: Model) -> None:
    """No reference cycle: pools of gigabytes must not wait for the garbage collector."""
    trial = Trial(model, "int8", num_requests=2, num_tokens=40)
    trial.start_anywhere()
    memory = weakref.ref(trial._storage._memory)
    gc.disable()
    try:
        del trial

        assert memory() is None
    finally:
        gc.enable()


def test_windows_are_whole_and_prompts_come_from_everywhere(model: Model) -> None:
    windows = cut_windows(model.tokenizer, TEXT, SMALL)
    prompts = cut_prompts(model.tokenizer, TEXT, SMALL)
    start = [model.tokenizer.bos_id] if model.tokenizer.add_bos else []
    ids = model.tokenizer.encode(TEXT, add_bos=False, parse_special=False)[: SMALL.num_tokens]

    joined = [token for window in windows for token in window[len(start) :]]
    assert joined == ids[: len(joined)]
    assert {len(window) for window in windows} == {SMALL.window}
    assert len(ids) - len(joined) < SMALL.window
    assert {len(prompt) for prompt in prompts} == {SMALL.prompt_tokens}
    assert prompts[-1][len(start) :] == ids[-(SMALL.prompt_tokens - len(start)) :]
    assert all(prompt[: len(start)] == start for prompt in prompts)


def test_what_cannot_be_measured_is_refused_with_the_way_out(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"less than one window=32; use a longer text"):
        cut_windows(model.tokenizer, "short", SMALL)
    with pytest.raises(ConfigError, match=r"kv_dtypes=int3 is none of bf16, fp16, fp32, int8"):
        KvQuantConfig(dtypes=("int3",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tokens=10 is less than one window=512"):
        KvQuantConfig(num_tokens=10)
    with pytest.raises(ConfigError, match=r"context=8 is not above rounds=9"):
        KvQuantConfig(context=8)
    with pytest.raises(ConfigError, match=r"window=2 is below 3"):
        KvQuantConfig(window=2)
    with pytest.raises(ConfigError, match=r"context=1000000 is above the \d+ that the model"):
        list(measure(model, TEXT, KvQuantConfig(context=1_000_000)))
    with pytest.raises(ConfigError, match=r"1000000 requests of 100000 tokens take .* fewer"):
        Trial(model, "fp32", num_requests=1_000_000, num_tokens=100_000)
