"""What machines that watch are told, and what the log says."""

import logging
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, client, client_of, make_app
from tests.server.fakes import FAILS, FakeEngine, Served, served

P = ord("p")
A = FIRST_PIECE
BODY = {"model": "m", "prompt": "p", "max_tokens": 4}


async def statuses(model: Served) -> list[int]:
    async with client(model) as http:
        return [(await http.get(path)).status_code for path in ("/health", "/ready")]


async def test_a_server_that_can_answer_is_alive_and_ready() -> None:
    assert await statuses(served()) == [200, 200]


async def test_a_dead_engine_is_neither_alive_nor_ready() -> None:
    """Keeps B90 out: docs/bugbank.md."""
    model = served()
    model.client.die()

    assert await statuses(model) == [503, 503]


async def test_a_full_queue_is_alive_but_not_ready() -> None:
    """Keeps B90 out: docs/bugbank.md."""
    model = served(engine=FakeEngine(seats=1, max_waiting=1))
    model.client.pause()
    app = make_app(model, max_waiting_requests=1)
    calls = [Call(app, "/v1/completions", BODY) for _ in range(2)]
    await model.client.until(running=1, waiting=1)

    async with client_of(app) as http:
        health, ready = await http.get("/health"), await http.get("/ready")
        refused = await http.post("/v1/completions", json=BODY)

    assert (health.status_code, ready.status_code) == (200, 503)
    assert ready.headers["retry-after"] == "1"
    assert refused.status_code == 429
    model.client.resume()
    for call in calls:
        await call.end()
        assert call.status == 200


async def test_a_draining_server_is_alive_but_not_ready() -> None:
    app = make_app(served())
    app.state.serving.drain.begin()
    async with client_of(app) as http:
        health, ready = await http.get("/health"), await http.get("/ready")

    assert (health.status_code, ready.status_code) == (200, 503)


def numbers(text: str) -> dict[str, float]:
    """Every sample that is no bucket, by name and by the label beside model_name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                labels = [v for k, v in sample.labels.items() if k != "model_name"]
                assert sample.labels["model_name"] == "m"
                found[" ".join([sample.name.removeprefix("kokuban:"), *labels])] = sample.value
    return found


async def test_requests_are_counted_once_however_they_end() -> None:
    """Keeps B92 out: docs/bugbank.md."""
    model = served({P: A, A: EOT, ord("f"): FAILS}, pieces=("hi",))
    app = make_app(model)
    async with client_of(app) as http:
        before = numbers((await http.get("/metrics")).text)
        plain = [await http.post("/v1/completions", json=BODY) for _ in range(3)]
        choices = await http.post("/v1/completions", json={**BODY, "n": 3})
        await http.post("/v1/completions", json={**BODY, "prompt": "x"})
        await http.post("/v1/completions", json={**BODY, "prompt": "f"})
        model.client.pause()
        gone = Call(app, "/v1/completions", BODY)
        await model.client.until(running=1)
        gone.leave()
        await gone.end()
        refused = await http.post("/v1/completions", json={**BODY, "n": 0})
        after = numbers((await http.get("/metrics")).text)

    assert refused.status_code == 400
    assert {name: after[name] - before[name] for name in before if "success" in name} == {
        "request_success_total stop": 4,
        "request_success_total length": 1,
        "request_success_total abort": 1,
        "request_success_total error": 1,
    }
    answers = [*plain, choices]
    prompts = sum(a.json()["usage"]["prompt_tokens"] for a in answers)
    tokens = sum(a.json()["usage"]["completion_tokens"] for a in answers)
    assert after["prompt_tokens_total"] == prompts + 2  # "x", and "f" up to its fault
    assert after["generation_tokens_total"] == tokens + 4
    assert after["time_to_first_token_seconds_count"] == 6
    assert after["e2e_request_latency_seconds_count"] == 5
    assert after["request_params_n_sum"] == 3 + 3 + 1
    assert after["num_requests_running"] == after["num_requests_waiting"] == 0
    assert after["kv_cache_usage_perc"] == 0
    assert after["http_responses_total 400"] == 1
    assert after["http_responses_total 500"] == 1
    assert after["cache_config_info 16 bf16 4096 8"] == 1


async def test_gauges_show_the_moment_of_the_scrape() -> None:
    model = served()
    model.client.pause()
    app = make_app(model)
    call = Call(app, "/v1/completions", {**BODY, "n": 2})
    await model.client.until(running=2)

    async with client_of(app) as http:
        response = await http.get("/metrics")
        stats = (await http.get("/stats")).json()

    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert numbers(response.text)["num_requests_running"] == 2
    assert numbers(response.text)["kv_cache_usage_perc"] == 0.25
    assert (stats["running"], stats["free_blocks"], stats["model"]) == (2, 6, "m")
    call.leave()
    await call.end()


async def test_a_request_is_one_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with client(served({P: A, A: EOT}, pieces=("answer-text",))) as http:
        await http.post(
            "/v1/completions",
            json={**BODY, "prompt": "question-p", "user": "somebody"},
            headers={"x-request-id": "client-1"},
        )

    [line] = [r.getMessage() for r in caplog.records if r.name == "kokuban.server.record"]
    assert re.fullmatch(
        r"completions id=[0-9a-f]{24} client_id=client-1 n=1 prompt=10 cached=0 output=2 "
        r"queue_ms=0\.0 ttft_ms=[0-9.]+ tpot_ms=[0-9.]+ e2e_ms=[0-9.]+ finish=stop",
        line,
    )


async def test_a_client_cannot_write_fields_of_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with client(served()) as http:
        headers = {"x-request-id": "1 finish=forged"}
        await http.post("/v1/completions", json=BODY, headers=headers)

    [line] = [r.getMessage() for r in caplog.records if r.name == "kokuban.server.record"]
    assert " client_id=- " in line
    assert "forged" not in line


async def test_the_page_and_its_files_come_from_here_alone() -> None:
    async with client(served(), api_keys=("k",)) as http:
        page = await http.get("/")
        names = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        files = [await http.get(name) for name in names]

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert names == ["/static/icon.svg", "/static/page.css", "/static/page.js"]
    assert [file.status_code for file in files] == [200] * 3
    for text in (page.text, *(file.text for file in files)):
        assert not re.search(r"(?:src|href|url|fetch|import)\W{1,3}https?:", text)


async def test_the_description_names_bodies_answers_and_errors() -> None:
    async with client(served()) as http:
        document = (await http.get("/openapi.json")).json()
        again = (await http.get("/openapi.json")).json()

    assert document == again
    post = document["paths"]["/v1/chat/completions"]["post"]
    reference = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/ChatRequest"
    schemas = document["components"]["schemas"]
    assert schemas["ChatRequest"]["required"] == ["messages"]
    assert set(schemas["ChatCompletion"]["required"]) >= {"id", "created", "model", "choices"}
    assert {"400", "401", "429", "500"} <= set(post["responses"])
    assert "422" not in post["responses"]
    used = set(re.findall(r'"#/components/schemas/([^"]+)"', str(document).replace("'", '"')))
    assert used <= set(schemas)
