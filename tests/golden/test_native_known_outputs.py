"""Models whose output is known beforehand, on the native executor with scheduler and engine."""

from pathlib import Path

from tests.golden.firebrand import OUTPUT_IDS, PROMPT_IDS, write_countdown
from tests.shared_data import shared_data
from tools.llama2c import convert_llama2c

from kokuban import LLM, SamplingParams
from kokuban.core.config import RuntimeConfig, SchedulerConfig

FP32 = RuntimeConfig(kv_dtype="fp32", kv_memory_bytes=2**24, threads=2)


def test_stories260k_tells_its_story_byte_for_byte(tmp_path: Path) -> None:
    """llama2.c at temperature 0 with an empty prompt: BOS, then 200 tokens."""
    gguf = convert_llama2c(
        shared_data("models/stories260K.bin"), shared_data("models/tok512.bin"), tmp_path
    )
    expected = shared_data("models/stories260K.expected.txt").read_text()
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)

    with LLM(gguf, runtime=FP32) as llm:
        [output] = llm.generate([[1]], params)

    assert output.choices[0].text.strip() == expected.strip()


def test_stories260k_in_tiny_steps_tells_the_same(tmp_path: Path) -> None:
    """A prompt cut into chunks of 3 tokens, beside others, continues with the same words."""
    gguf = convert_llama2c(
        shared_data("models/stories260K.bin"), shared_data("models/tok512.bin"), tmp_path
    )
    params = SamplingParams(temperature=0, max_tokens=60)
    prompt = "Once upon a time, there was a little girl named Lily."
    with LLM(gguf, runtime=FP32) as llm:
        [alone] = llm.generate(prompt, params)
    small = SchedulerConfig(token_budget=3, max_running_requests=3)

    with LLM(gguf, scheduler=small, runtime=FP32) as llm:
        chunked = llm.generate([prompt, "A dog", prompt], params)

    assert len(alone.choices[0].token_ids) == 60
    assert chunked[0].choices[0].text == alone.choices[0].text
    assert chunked[2].choices[0].text == alone.choices[0].text


def test_the_compiled_countdown_is_exact_in_float32(tmp_path: Path) -> None:
    """firebrand compiles a program into a phi3 checkpoint: 31, then 30 down to 0."""
    write_countdown(tmp_path / "countdown")
    params = SamplingParams(temperature=0, max_tokens=64)

    with LLM(tmp_path / "countdown", runtime=FP32) as llm:
        [output] = llm.generate([list(PROMPT_IDS)], params)

    assert tuple(output.choices[0].token_ids) == OUTPUT_IDS
