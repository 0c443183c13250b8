"""The offline face: batches of any size, an end without `close`, an interrupted call."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.make_tiny_models import write_tiny_model

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.env import for_child
from kokuban.core.errors import RequestError, StepFailed

ROOT = Path(__file__).resolve().parents[2]
SMALL = RuntimeConfig(kv_memory_bytes=2**24, threads=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llm"), "llama", form="gguf", dtype="q8_0")


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    scheduler = SchedulerConfig(max_running_requests=4, max_waiting_requests=6)
    with LLM(path, scheduler=scheduler, runtime=SMALL) as llm:
        yield llm


def test_a_batch_longer_than_the_queue_is_fed_to_it(llm: LLM) -> None:
    outputs = llm.generate(["a", "bc"] * 30, SamplingParams(max_tokens=2, n=2, ignore_eos=True))

    assert len(outputs) == 60
    assert all(len(choice.token_ids) == 2 for each in outputs for choice in each.choices)


def test_prompts_are_texts_or_ids_one_or_many(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
    ids = list(llm.generate("ab", params)[0].prompt_token_ids)

    assert llm.generate(ids, params)[0].choices[0].text == (
        llm.generate(["ab"], params)[0].choices[0].text
    )


def test_a_stream_gives_what_generate_gives(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, seed=1, ignore_eos=True)

    streamed = "".join(delta.text for delta in llm.stream("ab", params))

    assert streamed == llm.generate("ab", params)[0].choices[0].text


def test_one_bad_prompt_ends_the_call_and_frees_the_others(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt holds token 5000"):
        llm.generate(["a", [5000]], SamplingParams(max_tokens=400, ignore_eos=True))

    [output] = llm.generate("a", SamplingParams(max_tokens=1))
    assert output.choices[0].usage is not None


def test_after_close_a_call_says_so(path: Path) -> None:
    llm = LLM(path, runtime=SMALL)
    llm.close()
    llm.close()

    with pytest.raises(StepFailed, match="this LLM is closed"):
        llm.generate("a")


def test_a_program_that_never_closes_ends_in_silence(path: Path) -> None:
    code = (
        "import sys\n"
        "from kokuban import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1])\n"
        "print(len(llm.generate(['a'], SamplingParams(max_tokens=2, ignore_eos=True))))\n"
    )

    found = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60,
        env=for_child(PYTHONPATH=str(ROOT / "src")), check=False,
    )  # fmt: skip

    assert (found.returncode, found.stdout, found.stderr) == (0, "1\n", "")
