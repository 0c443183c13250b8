"""Log lines for machines, vLLM's names, the dashboard's expressions and spans."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, client, client_of, make_app
from tests.server.fakes import FAILS, FakeEngine, Served, served

from kokuban.core.errors import ConfigError
from kokuban.core.step import Usage
from kokuban.observe.logs import set_up_logging
from kokuban.observe.vllm_names import VLLM_NAMES
from kokuban.server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
P = ord("p")
A = FIRST_PIECE
BODY = {"model": "m", "prompt": "p", "max_tokens": 4}
CHAIN = {P: A, A: EOT, ord("f"): FAILS}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}


def model_of() -> Served:
    usage = Usage(0, 0, cached_tokens=1, queue_s=0.25, prefill_s=0.5, decode_s=1.5)
    return served(CHAIN, pieces=("hi",), engine=FakeEngine(CHAIN, usage=usage))


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the JSON log holds, once the test reads it with `read`."""
    stream = io.StringIO()
    logger = logging.getLogger("kokuban")
    before = logger.handlers[:], logger.level, logger.propagate
    set_up_logging("INFO", stream, form="json")
    found: list[dict[str, Any]] = Lines(stream)
    yield found
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


class Lines(list[dict[str, Any]]):
    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


async def test_each_request_is_one_json_line_with_the_conventions_names(lines: Lines) -> None:
    async with client(model_of()) as http:
        headers = {"x-request-id": "client-1"}
        await http.post("/v1/completions", json=BODY, headers=headers)
        await http.get("/health")

    [line] = lines.read()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line.pop("time"))
    assert re.fullmatch(r"[0-9a-f]{24}", line.pop("gen_ai.response.id"))
    for name in ("time_to_first_token", "time_per_output_token", "request.duration"):
        assert line.pop(f"gen_ai.server.{name}") >= 0
    assert line.pop("message").startswith("completions id=")
    assert line == {
        "level": "INFO",
        "logger": "kokuban.server.record",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "kokuban",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"],
        "kokuban.api": "completions",
        "kokuban.finish": "stop",
        "kokuban.client_id": "client-1",
        "kokuban.queue_s": 0.25,
        "kokuban.prefill_s": 0.5,
        "kokuban.decode_s": 1.5,
        "kokuban.preemptions": 0,
    }


async def test_a_request_that_is_refused_or_fails_is_one_line_too(lines: Lines) -> None:
    app = make_app(model_of())
    async with client_of(app) as http:
        await http.post("/v1/completions", json={**BODY, "n": 0})
        await http.post("/v1/completions", json={**BODY, "prompt": "f"})
        await http.get("/nothing/secret?q=1")

    refused, failed, unknown = lines.read()
    assert refused["http.route"] == "/v1/completions"
    assert refused["http.response.status_code"] == 400
    assert (failed["kokuban.finish"], failed["error.type"]) == ("error", "error")
    assert (unknown["http.route"], unknown["http.response.status_code"]) == ("-", 404)
    assert "secret" not in unknown["message"]


async def families(model: Served, **settings: Any) -> dict[str, str]:
    """Every metric's name, with its type."""
    async with client(model, **settings) as http:
        await http.post("/v1/completions", json=BODY)
        text = (await http.get("/metrics")).text
    found = text_string_to_metric_families(text)
    return {each.name: each.type for each in found if not each.name.endswith("_created")}


async def test_vllms_names_are_there_when_asked_for_and_say_the_same() -> None:
    plain = await families(model_of())
    both = await families(model_of(), vllm_metrics=True)

    assert not [name for name in plain if name.startswith("vllm:")]
    vllm = {name.removeprefix("vllm:") for name in both if name.startswith("vllm:")}
    assert vllm == VLLM_NAMES
    assert {name for name in both if name.startswith("kokuban:")} == set(plain)
    for name in vllm:
        assert both[f"vllm:{name}"] == both[f"kokuban:{name}"]

    async with client(model_of(), vllm_metrics=True) as http:
        await http.post("/v1/completions", json=BODY)
        lines = (await http.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    twins = [name for name in values if name.startswith("vllm:")]
    assert len(twins) > 300
    for name in twins:
        assert values[name] == values[name.replace("vllm:", "kokuban:", 1)]


async def test_the_document_lists_every_metric_and_none_that_is_not() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_]+)` \|[^|]*\|([^|]*)\|", text, re.MULTILINE)
    listed = {name: "`vllm:" in vllm for name, vllm in rows}

    exported = {name.removeprefix("kokuban:") for name in await families(model_of())}
    tiers = {name for name in listed if name.startswith("kv_tier_")}  # Only with lower tiers.

    assert set(listed) - tiers == exported
    assert len(tiers) == 6
    assert {name for name, is_vllms in listed.items() if is_vllms} == VLLM_NAMES


async def test_every_expression_of_the_dashboard_names_a_metric_that_exists() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "kokuban.json").read_text())
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())
    ]
    async with client(model_of()) as http:
        await http.post("/v1/completions", json=BODY)
        text = (await http.get("/metrics")).text
    samples = {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }
    samples |= {"kokuban:kv_tier_read_blocks_total", "kokuban:kv_tier_written_blocks_total"}

    named = set(re.findall(r"kokuban:[a-z0-9_]+", " ".join(expressions)))
    assert named - samples == set()
    assert len(expressions) >= 15
    assert len(named) >= 15
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


async def test_labels_stay_few_whatever_clients_send() -> None:
    model = model_of()
    app = make_app(model, requests_per_minute=1)
    async with client_of(app) as http:
        for i in range(50):
            await http.post("/v1/completions", json={**BODY, "model": f"m{i}", "user": f"u{i}"})
            await http.get(f"/v1/{i}", headers={"x-session-id": str(i)})
            await http.request(f"M{i}", "/v1/models")
        text = (await http.get("/metrics")).text

    for family in text_string_to_metric_families(text):
        series = {
            tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")) for s in family.samples
        }
        assert len(series) <= 10, family.name


async def test_refusals_are_counted_by_their_reason() -> None:
    model = served(engine=FakeEngine(seats=0, max_waiting=0))
    async with client(model, requests_per_minute=2) as http:
        for _ in range(3):
            await http.post("/v1/completions", json=BODY)
        text = (await http.get("/metrics")).text

    counts = dict(
        re.findall(r'^kokuban:requests_refused_total\{.*reason="(\w+)"\} (\S+)', text, re.M)
    )
    assert counts["queue_full"] == "2.0"
    assert counts["rate_limit_exceeded"] == "1.0"


def spans_of(model: Served, requests: Sequence[tuple[dict[str, Any], dict[str, str]]]) -> Any:
    """Exported spans of requests that are sent one after the other."""
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    from dataclasses import replace

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from kokuban.server.tracing import Tracer

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = make_app(model)
    app.state.serving = replace(app.state.serving, tracer=Tracer(provider))

    async def send() -> Any:
        async with client_of(app) as http:
            for body, headers in requests:
                await http.post("/v1/completions", json=body, headers=headers)
        return exporter.get_finished_spans()

    return send()


async def test_a_span_tells_of_a_request_and_belongs_to_its_callers_trace() -> None:
    [span] = await spans_of(model_of(), [(BODY, PARENT)])

    assert span.name == "text_completion m"
    assert span.kind.name == "SERVER"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert span.attributes["gen_ai.usage.output_tokens"] == 2
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert span.attributes["kokuban.queue_s"] == 0.25
    assert [event.name for event in span.events] == ["first token"]
    assert span.start_time <= span.events[0].timestamp <= span.end_time
    assert span.status.status_code.name == "UNSET"
    assert not any(value == "hi" for value in span.attributes.values())


@pytest.mark.parametrize("parent", [{}, {"traceparent": "nonsense"}, {"traceparent": "00-0-0-00"}])
async def test_a_request_of_no_trace_begins_one(parent: dict[str, str]) -> None:
    [span] = await spans_of(model_of(), [({**BODY, "prompt": "f"}, parent)])

    assert span.parent is None
    assert span.context.trace_id != 0
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["error.type"] == "error"


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    make_app(served())

    assert "kokuban.server.tracing" not in sys.modules or "opentelemetry" in sys.modules
    with pytest.raises(ConfigError, match="is no URL"):
        make_app(served(), otlp_traces_endpoint="localhost:4318")


def test_traces_without_the_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "opentelemetry.sdk.resources",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    ):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=r"pip install 'kokuban\[otel\]'"):
        make_app(served(), otlp_traces_endpoint="http://localhost:4318/v1/traces")


def test_a_form_of_lines_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="log_format='xml' is not one of text, json"):
        ServerSettings(log_format="xml")


async def test_an_aborted_request_is_told_as_such(lines: Lines) -> None:
    model = model_of()
    model.client.pause()
    call = Call(make_app(model), "/v1/completions", BODY)
    await model.client.until(running=1)
    call.leave()
    await call.end()

    [line] = lines.read()
    assert (line["kokuban.finish"], line["error.type"]) == ("abort", "abort")
