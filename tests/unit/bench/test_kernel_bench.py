"""Kernels are judged first, then timed beside their bound; a wrong one is told and not timed."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import kokuban.bench.cases_attention as cases_attention
import kokuban.bench.cases_linear as cases_linear
import kokuban.bench.cases_rows as cases_rows
from kokuban.bench.kernel_bench import KernelBench, all_cases, speed_of
from kokuban.bench.kernel_case import Bound, Case, Prepared, Setup, Verdict
from kokuban.cli import app
from kokuban.core.config import KV_DTYPES
from kokuban.kernels.linear import WEIGHT_TYPES
from kokuban.kernels.native import make_threads

QUICK = Setup(pool=make_threads(1), threads=1, isa_cap=-1, quick=True)
FULL = Setup(pool=QUICK.pool, threads=1, isa_cap=-1, quick=False)
BOUND = Bound(moved_bytes=100, working_set_bytes=1000, ops=400, arithmetic="int8", threads=3)


class FakeProbes:
    """A machine of 50 bytes and 100 operations a second, that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, int]] = []

    def bytes_per_s(self, working_set_bytes: int, threads: int) -> float:
        self.asked.append((working_set_bytes, threads))
        return 50

    def ops_per_s(self, probe: str, threads: int) -> float:
        self.asked.append((probe, threads))
        return 100


def case(verdict: Callable[[], Verdict], log: list[str] | None = None) -> Case:
    calls = [] if log is None else log
    prepared = Prepared(lambda: calls.append("run"), verdict, lambda: calls.append("empty"))
    return Case(kernel="k", name="n", bound=BOUND, prepare=lambda: prepared)


def bench(probes: FakeProbes) -> KernelBench:
    return KernelBench(probes, rounds=2, round_s=0)


def test_the_bound_is_what_takes_longer_at_best() -> None:
    """400 operations at 100 a second take 4 s, 100 bytes at 50 a second only 2."""
    found = speed_of(BOUND, [8.0, 16.0, 10.0], [50, 50, 50], [100, 100, 100])

    assert (found.limit, found.fraction, found.seconds, found.spread) == ("int8", 0.4, 10, 0.8)
    assert (found.ops_per_s, found.bytes_per_s, found.limit_per_s) == (40, 10, 100)


def test_a_fraction_is_formed_within_its_round() -> None:
    """The machine is twice as fast in the second round: so are limit and kernel."""
    found = speed_of(BOUND, [8.0, 4.0], [50, 100], [100, 200])

    assert found.fraction == 0.5


def test_without_operations_memory_is_the_bound() -> None:
    bound = Bound(moved_bytes=100, working_set_bytes=1000)

    found = speed_of(bound, [4.0, 4.0], [50, 50], [])

    assert (found.limit, found.fraction, found.ops_per_s) == ("memory", 0.5, 0)


def test_a_right_kernel_is_timed_and_its_limits_are_measured_in_each_round() -> None:
    probes, log = FakeProbes(), list[str]()

    found = bench(probes).run_one(case(lambda: Verdict(0.1, 0.1, "m"), log))

    assert found.right
    assert found.speed is not None
    assert probes.asked == [(1000, 3), ("int8", 3)] * 2
    assert log.count("run") == 2 * (1 + 3)
    assert log[0] == "empty"


@pytest.mark.parametrize("error", [0.11, float("nan"), float("inf")])
def test_a_wrong_kernel_is_not_timed(error: float) -> None:
    log: list[str] = []

    found = bench(FakeProbes()).run_one(case(lambda: Verdict(error, 0.1, "m"), log))

    assert not found.right
    assert found.speed is None
    assert log == []
    json.dumps(found.as_json(), allow_nan=error != error or error == float("inf"))


def test_a_kernel_that_raises_is_a_result_and_the_next_one_runs() -> None:
    def refuse() -> Verdict:
        raise ValueError("no such shape")

    refused, fine = bench(FakeProbes()).run([case(refuse), case(lambda: Verdict(0, 0, "m"))])

    assert (refused.right, refused.failure) == (False, "ValueError: no such shape")
    assert fine.right


def test_every_weight_type_and_kv_dtype_and_kernel_has_cases() -> None:
    titles = [each.title for each in all_cases(FULL)]

    assert len(titles) == len(set(titles))
    for weight_type in WEIGHT_TYPES:
        for rows in (1, 8, 32, 512):
            assert f"linear {weight_type} 576x1536 rows {rows}" in titles
    for dtype in KV_DTYPES:
        for kind in ("attention decode", "attention chunk", "kv_write"):
            assert any(title.startswith(f"{kind} {dtype} ") for title in titles)
    for kernel in ("rms_norm", "rope", "gated silu", "gated gelu_tanh", "sampling greedy"):
        assert any(title.startswith(kernel) for title in titles)


def test_bounds_count_what_a_call_must_move_and_compute() -> None:
    bounds = {each.title: each.bound for each in all_cases(FULL)}

    product = bounds["linear Q4_1 896x4864 rows 32"]
    assert product.ops == 2 * 32 * 896 * 4864
    assert product.moved_bytes == 896 * 4864 * 20 // 32 + 4 * 32 * (896 + 4864)
    assert product.arithmetic == "int8"
    assert product.working_set_bytes >= 96 << 20
    decode = bounds["attention decode bf16 smollm2-135m 32x1 context 512"]
    assert decode.moved_bytes == 32 * 512 * 2 * 3 * 64 * 2 + 2 * 4 * 32 * 9 * 64
    assert decode.ops == 4 * 32 * 512 * 9 * 64
    chunk = bounds["attention chunk bf16 smollm2-135m 1x512 context 512"]
    assert chunk.ops == 4 * (512 * 513 // 2) * 9 * 64
    window = bounds["attention decode bf16 gemma-3-270m 1x1 context 4096"]
    assert window.moved_bytes == 512 * 2 * 256 * 2 + 2 * 4 * 4 * 256


def test_a_word_chooses_the_cases_that_have_it_in_their_name() -> None:
    some = case(lambda: Verdict(0, 0, "m"))

    assert some.matches(())
    assert some.matches(("x", "K N"))
    assert not some.matches(("x",))


def off_by_a_little(found: Any) -> Any:
    """As a kernel that forgets the last term of one sum."""
    found.flat[-1] *= 1.001
    found.flat[-1] += 2e-3
    return found


def wrong_result(real: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        return off_by_a_little(found) if found.size else found

    return kernel


def wrong_array(place: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A kernel that writes into its argument `place`."""

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def kernel(*args: Any, **options: Any) -> Any:
            real(*args, **options)
            target = args[place]
            if target.dtype == np.uint8:
                target.flat[1] ^= 1
            elif target.size:
                off_by_a_little(target)

        return kernel

    return wrap


def wrong_token(real: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        found.tokens[-1:] += 1
        return found

    return kernel


@pytest.mark.parametrize(
    ("module", "name", "wrap", "only"),
    [
        (cases_linear, "linear", wrong_result, "linear F32,linear BF16,linear Q4_K,linear Q8_0"),
        (cases_attention, "attention", wrong_array(5), "decode,chunk"),
        (cases_rows, "rms_norm", wrong_array(2), "rms_norm"),
        (cases_rows, "rope", wrong_array(0), "rope"),
        (cases_rows, "gated_activation", wrong_array(3), "gated"),
        (cases_rows, "kv_write", wrong_array(3), "kv_write"),
        (cases_rows, "sample_rows", wrong_token, "sampling"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_case_notices_a_kernel_that_is_a_little_wrong(
    module: Any, name: str, wrap: Any, only: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, wrap(getattr(module, name)))
    words = tuple(only.split(","))

    found = [bench(FakeProbes()).run_one(c) for c in all_cases(QUICK) if c.matches(words)]

    assert found
    assert [result.title for result in found if result.right] == []


def test_the_command_tells_each_kernel_and_ends_well(tmp_path: Any) -> None:
    path = tmp_path / "out.json"
    chosen = "linear Q4_1,decode int8,rms_norm,sampling greedy"

    done = CliRunner().invoke(
        app, ["bench", "kernels", "--quick", "--threads", "1", "--rounds", "1", "--only", chosen,
              "--json", str(path)],
    )  # fmt: skip

    assert done.exit_code == 0, done.output
    document = json.loads(path.read_text())
    titles = [f"{each['kernel']} {each['name']}" for each in document["figures"]]
    assert titles == [
        "linear Q4_1 576x1536 rows 1",
        "linear Q4_1 576x1536 rows 8",
        "linear Q4_1 576x1536 rows 32",
        "attention decode int8 smollm2-135m 4x1 context 300",
        "rms_norm 576 rows 3",
        "sampling greedy 5000 rows 3",
    ]
    for title, figures in zip(titles, document["figures"], strict=True):
        assert title in done.output
        assert figures["right"]
        assert figures["speed"]["seconds"] > 0
        assert figures["speed"]["fraction"] > 0
    assert set(document["facts"]) >= {"command", "cpu", "cpu_flags", "kokuban", "isa"}


def test_the_command_fails_clearly_when_a_kernel_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(cases_rows, "rms_norm", wrong_array(2)(cases_rows.rms_norm))
    path = tmp_path / "out.json"

    done = CliRunner().invoke(
        app, ["bench", "kernels", "--quick", "--threads", "1", "--only", "rms_norm,rope",
              "--json", str(path)],
    )  # fmt: skip

    assert done.exit_code == 1
    assert "WRONG rms_norm 576 rows 3: error" in done.output
    assert "1 of 2 kernels are wrong" in done.output
    right = {each["kernel"]: each["right"] for each in json.loads(path.read_text())["figures"]}
    assert right == {"rms_norm": False, "rope": True}


def test_words_that_leave_no_kernel_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kokuban.cli import main

    monkeypatch.setattr("sys.argv", ["kokuban", "bench", "kernels", "--only", "warp"])

    with pytest.raises(SystemExit) as end:
        main()

    assert end.value.code == 2
    assert "--only warp leaves no kernel; there are linear" in capsys.readouterr().err
