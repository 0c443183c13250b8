"""/v1/explain: receipts by id, why a prompt was not found, and who learns nothing of it."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from tests.fakes_text import FIRST_PIECE
from tests.server.asgi import Call, Json, client, client_of, events_of, make_app
from tests.server.fakes import FakeEngine, Served, served

from kokuban.core.step import Usage

ID = re.compile(r"[0-9a-f]{24}")
KEYS = ("one", "two")
SAY = FIRST_PIECE
"""A token that is said again and again after "p"."""


def model_of(**options: Any) -> Served:
    return served(pieces=("Hi",), engine=FakeEngine({ord("p"): SAY}, **options))


async def complete(
    http: httpx.AsyncClient,
    prompt: Any,
    *,
    found: int = 0,
    model: Served,
    key: str = "one",
    **fields: Any,
) -> Json:
    """One completion of which the engine says that `found` tokens were cached."""  # fmt: skip
    model.client.costs = Usage(0, 0, cached_tokens=found, decode_s=0.5)
    body = {"model": "m", "prompt": prompt, "max_tokens": 4, **fields}
    headers = {"authorization": f"Bearer {key}"}
    response = await http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def explain(
    http: httpx.AsyncClient, answer_id: str, *, key: str = "one", **query: Any
) -> Json:
    headers = {"authorization": f"Bearer {key}"}
    response = await http.get(f"/v1/explain/{answer_id}", headers=headers, params=query)
    assert response.status_code == 200, response.text
    return response.json()  # type: ignore[no-any-return]


async def miss(
    first: str,
    second: str,
    found: int,
    *,
    salts: tuple[str | None, str | None] = (None, None),
    **fields: Any,
) -> tuple[Json, str]:
    """What is said of the second prompt, of which `found` tokens were cached; the first's id."""
    model = model_of()
    async with client(model) as http:
        before = await complete(http, first, model=model, cache_salt=salts[0])
        answer = await complete(
            http, second, found=found, model=model, cache_salt=salts[1], **fields
        )
        told = await explain(http, answer["id"])
    return told["prompt"], before["id"].removeprefix("cmpl-")


async def test_the_id_of_an_answer_is_the_key_to_its_receipt() -> None:
    model = model_of()
    async with client(model) as http:
        answer = await complete(http, "some prompt", found=3, model=model)
        whole = await explain(http, answer["id"])
        bare = await explain(http, answer["id"].removeprefix("cmpl-"))

    assert whole["usage"] == answer["usage"]
    assert whole["usage"]["kokuban"]["cached_pool_tokens"] == 3
    assert ID.fullmatch(whole["id"])
    assert (whole["api"], whole["status"], whole["num_prompts"]) == ("completions", "length", 1)
    assert whole["created"] == answer["created"]
    assert whole["ttft_ms"] <= whole["e2e_ms"]
    assert bare == whole


async def test_a_chat_that_is_streamed_is_explained_too() -> None:
    model = model_of(usage=Usage(0, 0, cached_tokens=10, queue_s=0.25, decode_s=0.5))
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with client(model) as http:
        events = events_of(await http.post("/v1/chat/completions", json=body))
        told = await explain(http, events[0]["id"])

    assert told["usage"] == events[-1]["usage"]
    assert told["usage"]["kokuban"]["queue_ms"] == 250.0
    assert (told["api"], told["prompt"]["cached_tokens"]) == ("chat", 10)


async def test_text_that_changed_is_shown_on_both_sides() -> None:
    prompt, first_id = await miss(
        "the weather in Rome is fine", "the weather in Oslo is cold", found=15
    )

    assert prompt["reason"] == "text_changed"
    assert (prompt["index"], prompt["prompt_tokens"], prompt["cached_tokens"]) == (0, 27, 15)
    assert prompt["nearest"] == {
        "request_id": first_id,
        "prompt": 0,
        "choice": None,
        "same_scope": True,
        "common_tokens": 15,
        "difference": {
            "index": 15,
            "before": "ther in ",
            "here": {"token_id": ord("O"), "token": "O", "text": "Oslo is "},
            "there": {"token_id": ord("R"), "token": "R", "text": "Rome is "},
        },
    }


async def test_a_turn_that_goes_on_from_an_answer_is_new_text() -> None:
    prompt, first_id = await miss("a long prompt", "a long promptttttt and more", found=16)

    nearest = prompt["nearest"]
    assert prompt["reason"] == "new_text"
    assert (nearest["request_id"], nearest["choice"]) == (first_id, 0)
    assert nearest["common_tokens"] == len("a long prompt") + 4
    assert nearest["difference"]["there"] is None
    assert nearest["difference"]["here"]["text"] == "t and mo"


async def test_an_answer_that_was_changed_before_it_came_back_is_found() -> None:
    """What an agent that rewrites the model's words does to its own cache."""
    prompt, _ = await miss("a long prompt", "a long prompttt, and more", found=15)

    assert prompt["reason"] == "text_changed"
    assert prompt["nearest"]["common_tokens"] == 15
    assert prompt["nearest"]["choice"] == 0
    assert prompt["nearest"]["difference"]["there"]["text"] == "tt"
    assert prompt["nearest"]["difference"]["here"]["text"] == ", and mo"


async def test_the_same_prompt_again_that_was_not_found_was_evicted() -> None:
    prompt, first_id = await miss("x" * 40, "x" * 40, found=16)

    assert prompt["reason"] == "evicted"
    assert (prompt["nearest"]["request_id"], prompt["nearest"]["common_tokens"]) == (first_id, 40)
    assert prompt["nearest"]["difference"] is None


async def test_after_a_reset_the_reset_is_the_reason() -> None:
    model = model_of()
    key = {"authorization": "Bearer one"}
    async with client(model, headers=key, admin_keys=("one",)) as http:
        await complete(http, "x" * 40, model=model)
        await http.post("/reset_prefix_cache")
        answer = await complete(http, "x" * 40, model=model)
        told = await explain(http, answer["id"])

    assert told["prompt"]["reason"] == "reset"


async def test_another_salt_is_named_and_nothing_of_its_text_is_shown() -> None:
    first, second = "x" * 40 + "secret", "x" * 40 + "guess"
    prompt, first_id = await miss(first, second, found=0, salts=("a", "b"))

    assert prompt["reason"] == "other_scope"
    assert prompt["nearest"]["request_id"] == first_id
    assert (prompt["nearest"]["same_scope"], prompt["nearest"]["common_tokens"]) == (False, 40)
    assert prompt["nearest"]["difference"]["there"] is None
    assert "secret" not in str(prompt)


@pytest.mark.parametrize(
    ("prompts", "found", "fields", "reason"),
    [
        (("abc", "xyz"), 0, {}, "no_prefix"),
        (("abc", "abc"), 2, {}, "hit"),
        (("x" * 40, "x" * 40), 0, {"echo": True, "logprobs": 0}, "scored"),
    ],
)
async def test_where_no_other_text_matters_none_is_shown(
    prompts: tuple[str, str], found: int, fields: Json, reason: str
) -> None:
    prompt, _ = await miss(*prompts, found, **fields)

    assert (prompt["reason"], prompt["nearest"]) == (reason, None)


async def test_a_server_without_a_cache_says_so() -> None:
    model = model_of()
    model.client.turn_prefix_cache_off()
    async with client(model) as http:
        await complete(http, "x" * 40, model=model)
        answer = await complete(http, "x" * 40, model=model)
        told = await explain(http, answer["id"])

    assert told["prompt"]["reason"] == "cache_off"


async def test_what_came_later_is_not_the_reason() -> None:
    model = model_of()
    async with client(model) as http:
        answer = await complete(http, "x" * 40, model=model)
        await complete(http, "x" * 40, model=model)
        told = await explain(http, answer["id"])

    assert (told["prompt"]["reason"], told["prompt"]["nearest"]) == ("no_prefix", None)


async def test_of_several_prompts_each_can_be_asked_for() -> None:
    model = model_of()
    async with client(model) as http:
        await complete(http, "second one", model=model)
        answer = await complete(http, ["first", "second two"], model=model, n=2)
        told = [(await explain(http, answer["id"], prompt=i))["prompt"] for i in (0, 1)]
        refused = await http.get(f"/v1/explain/{answer['id']}?prompt=2")

    assert [each["index"] for each in told] == [0, 1]
    assert [each["reason"] for each in told] == ["no_prefix", "text_changed"]
    assert told[1]["nearest"]["common_tokens"] == len("second ")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("asked", ["-1", "x", "", "²", "1" * 30])
async def test_a_prompt_that_is_no_number_is_refused(asked: str) -> None:
    model = model_of()
    async with client(model) as http:
        answer = await complete(http, "p", model=model)
        refused = await http.get(f"/v1/explain/{answer['id']}", params={"prompt": asked})

    assert refused.status_code == 400


async def test_a_tenant_learns_nothing_of_anothers_requests() -> None:
    model = model_of()
    async with client(model, api_keys=KEYS) as http:
        theirs = await complete(http, "x" * 40 + "secret", model=model, key="one")
        mine = await complete(http, "x" * 40 + "guess", model=model, key="two")
        told = await explain(http, mine["id"], key="two")
        headers = {"authorization": "Bearer two"}
        foreign = await http.get(f"/v1/explain/{theirs['id']}", headers=headers)
        unknown = await http.get(f"/v1/explain/cmpl-{'0' * 24}", headers=headers)

    assert (told["prompt"]["reason"], told["prompt"]["nearest"]) == ("no_prefix", None)
    assert (foreign.status_code, foreign.content) == (404, unknown.content)
    assert foreign.json()["error"]["code"] == "request_not_found"


async def test_a_tenant_cannot_push_out_what_another_is_remembered_by() -> None:
    model = model_of()
    async with client(model, api_keys=KEYS, explain_requests=2) as http:
        mine = [await complete(http, "x", model=model, key="one") for _ in range(3)]
        for _ in range(3):
            await complete(http, "x", model=model, key="two")
        gone = await http.get(
            f"/v1/explain/{mine[0]['id']}", headers={"authorization": "Bearer one"}
        )
        kept = [await explain(http, answer["id"]) for answer in mine[1:]]

    assert gone.status_code == 404
    assert [each["status"] for each in kept] == ["length", "length"]


async def test_where_strangers_share_one_tenant_the_route_is_closed() -> None:
    model = model_of()
    async with client(model, host="0.0.0.0", no_auth=True) as http:
        answer = await complete(http, "p", model=model)
        refused = await http.get(f"/v1/explain/{answer['id']}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_closed")


async def test_with_nothing_remembered_nothing_is_explained() -> None:
    model = model_of()
    async with client(model, explain_requests=0) as http:
        answer = await complete(http, "p", model=model)
        assert (await http.get(f"/v1/explain/{answer['id']}")).status_code == 404


async def test_a_request_that_runs_and_one_that_was_left_can_be_explained() -> None:
    model = model_of(usage=Usage(0, 0, cached_tokens=1, queue_s=0.125))
    app = make_app(model)
    body = {"model": "m", "prompt": "some text", "max_tokens": 1000, "stream": True}
    call = Call(app, "/v1/completions", body)
    await call.until(b'"id"')
    [answer_id] = set(re.findall(r'"id":"(cmpl-\w+)"', call.data.decode()))
    async with client_of(app) as http:
        running = await explain(http, answer_id)
        call.leave()
        await call.end()
        left = await explain(http, answer_id)

    assert (running["status"], left["status"]) == ("running", "abort")
    assert running["usage"]["kokuban"]["queue_ms"] == 125.0
    assert left["prompt"]["cached_tokens"] == 1
    assert left["usage"]["completion_tokens"] >= 1


async def test_a_request_that_waits_has_no_reason_yet_and_one_that_was_refused_is_forgotten() -> (
    None
):
    engine = FakeEngine({}, seats=1, max_waiting=1)
    engine.pause()
    app = make_app(served(engine=engine))
    body = {"model": "m", "prompt": "some text", "max_tokens": 1}
    calls = [Call(app, "/v1/completions", body)]
    await engine.until(running=1)
    calls.append(Call(app, "/v1/completions", body))
    await engine.until(running=1, waiting=1)
    ids = [request.id.partition("-")[0] for request in engine.submitted]
    async with client_of(app) as http:
        refused = await http.post("/v1/completions", json=body)
        waiting = await explain(http, ids[1])
        gone = await http.get(f"/v1/explain/{refused.headers['x-request-id']}")
        engine.resume()
        await asyncio.gather(*(call.end() for call in calls))

    assert (refused.status_code, gone.status_code) == (429, 404)
    assert waiting["status"] == "running"
    assert (waiting["prompt"]["reason"], waiting["prompt"]["cached_tokens"]) == (None, None)


async def test_a_large_history_is_searched_off_the_loop_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = []
    to_thread = asyncio.to_thread

    async def watched(work: Any) -> Any:
        used.append(work)
        return await to_thread(work)

    model = model_of(max_context_tokens=100_000)
    async with client(model) as http:
        await complete(http, "x" * 40_000 + "a", model=model)
        answer = await complete(http, "x" * 40_000 + "b", model=model, found=40_000)
        monkeypatch.setattr(asyncio, "to_thread", watched)
        told = await explain(http, answer["id"])

    assert told["prompt"]["reason"] == "hit"
    assert used == []
    async with client(model) as http:
        await complete(http, "x" * 40_000 + "a", model=model)
        answer = await complete(http, "x" * 40_000 + "bc", model=model, found=40_000)
        used.clear()
        told = await explain(http, answer["id"])
    assert told["prompt"]["nearest"]["common_tokens"] == 40_000
    assert len(used) == 1
