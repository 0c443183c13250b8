"""What the operator chose is checked at once, all of it, with values and limits."""

import pytest

from kokuban.core.config import RuntimeConfig, SchedulerConfig, parse_bytes
from kokuban.core.errors import ConfigError


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        SchedulerConfig(token_budget=8, max_running_requests=9, block_size=12, max_skips=-1)

    text = str(raised.value)
    assert "token_budget=8 cannot give each of max_running_requests=9 one token" in text
    assert "block_size=12 is none of 16, 32, 64, 128" in text
    assert "max_skips=-1 is negative" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"token_budget": 2**20 + 1}, "token_budget=1048577 is above 1048576"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens=0 is below 1"),
        ({"step_target_ms": 0.0}, "step_target_ms=0.0 is no time above 0"),
        ({"step_target_ms": float("nan")}, "step_target_ms=nan is no time above 0"),
        ({"max_running_requests": 0}, "max_running_requests=0 is below 1"),
        ({"max_waiting_requests": 0}, "max_waiting_requests=0 is below 1"),
        ({"max_context_tokens": -1}, "max_context_tokens=-1 is negative"),
    ],
)
def test_a_limit_of_the_scheduler_is_named(options: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        SchedulerConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [-1, 513, 100_000])
def test_a_number_of_threads_that_no_machine_has_is_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"threads={threads} is not between 0 and 512"):
        RuntimeConfig(threads=threads)


def test_an_unknown_kv_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="kv_dtype=int3 is none of bf16, fp16, fp32, int8, fp8_e4m3"
    ):
        RuntimeConfig(kv_dtype="int3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("512mib", 2**29), ("1.5 g", 1_500_000_000), ("1000", 1000), ("3KB", 3000)],
)
def test_sizes_are_read_in_both_kinds_of_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 TiB", "2GiBs", "nan", "1e9"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size; write it like 2GiB"):
        parse_bytes(text)
