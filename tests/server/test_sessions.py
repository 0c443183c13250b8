"""Sessions over HTTP: their names, their routes, and whose they are."""

from dataclasses import replace
from typing import Any

import pytest
from tests.server.asgi import Json, chat, client, complete
from tests.server.fakes import FakeEngine, Served, served

from kokuban.core.session import PausePrices
from kokuban.core.step import Usage

KEYS = ("one", "two")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def started(model: Served, name: str = "agent 7/a") -> Served:
    """The model after one request of a session."""
    assert (await complete(model, max_tokens=1, prompt_cache_key=name)).status_code == 200
    return model


async def call(model: Served, method: str, path: str, **options: Any) -> tuple[int, Json]:
    async with client(model) as http:
        response = await http.request(method, f"/v1/sessions/{path}", **options)
    return response.status_code, response.json()


async def test_a_request_names_its_session_by_header_or_field_and_the_header_goes_first() -> None:
    model = served()
    body = {"model": "m", "prompt": "p", "max_tokens": 1, "n": 2}
    async with client(model) as http:
        for key, header in (("field", None), ("field", "header"), (None, "header"), (None, None)):
            headers = {} if header is None else {"x-session-id": header}
            fields = {**body, "prompt_cache_key": key}
            response = await http.post("/v1/completions", json=fields, headers=headers)
            assert response.status_code == 200

    found = [request.session for request in model.client.submitted]
    assert found == ["field", "field", "header", "header", "header", "header", "", ""]


async def test_a_chat_has_a_session_and_every_prompt_of_a_completion_too() -> None:
    model = served()

    assert (await chat(model, max_tokens=1, prompt_cache_key="s")).status_code == 200
    assert (await complete(model, ["a", "b"], max_tokens=1, prompt_cache_key="t")).is_success

    assert [request.session for request in model.client.submitted] == ["s", "t", "t"]


@pytest.mark.parametrize("name", ["", 5, True, "x" * 257, "a\nb", "a\0", "\x7f"])
async def test_a_field_that_is_no_name_is_refused(name: object) -> None:
    model = served()

    for response in (
        await chat(model, prompt_cache_key=name),
        await complete(model, prompt_cache_key=name),
    ):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt_cache_key"
    assert model.client.submitted == []


@pytest.mark.parametrize(
    "headers",
    [
        [("x-session-id", "")],
        [("x-session-id", "x" * 257)],
        [("x-session-id", b"\xff")],
        [("x-session-id", "a\tb")],
        [("x-session-id", "a"), ("x-session-id", "a")],
    ],
)
async def test_a_header_that_is_no_name_is_refused(headers: Any) -> None:
    model = served()
    async with client(model) as http:
        body = {"model": "m", "prompt": "p"}
        response = await http.post("/v1/completions", json=body, headers=headers)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Session-ID"
    assert model.client.submitted == []


async def test_header_field_and_path_mean_the_same_session() -> None:
    name = "čaj/%2F pause"
    model = await started(served(), name)
    async with client(model) as http:
        headers = {"x-session-id": name.encode()}
        body = {"model": "m", "prompt": "p", "max_tokens": 1}
        await http.post("/v1/completions", json=body, headers=headers)
        path = "/v1/sessions/%C4%8Daj%2F%252F%20pause"
        found = await http.get(path)
        paused = await http.post(f"{path}/pause", json={})

    assert [request.session for request in model.client.submitted] == [name, name]
    assert found.json()["id"] == paused.json()["id"] == name


async def test_a_session_tells_what_it_has() -> None:
    model = await started(served())

    assert await call(model, "GET", "agent%207%2Fa") == (
        200,
        {
            "id": "agent 7/a",
            "object": "kokuban.session",
            "active": False,
            "paused": False,
            "num_tokens": 1,
            "num_blocks": 1,
            "place": "pool",
            "expected_ms": None,
            "prices": None,
            "message": "not paused: its KV is kept like any other, the latest longest",
        },
    )


async def test_a_pause_takes_milliseconds_and_tools_and_a_resumption_nothing() -> None:
    model = await started(served(), "s")

    for fields in (
        {"expected_ms": 1500, "tools": ["search", "read"]},
        {},
        {"expected_ms": None, "tools": None, "unknown": 1},
        {"expected_ms": 0},
        {"expected_ms": 86_400_000},
    ):
        status, body = await call(model, "POST", "s/pause", json=fields)
        assert (status, body["paused"]) == (200, True)
    status, body = await call(model, "POST", "s/resume")

    assert (status, body["paused"]) == (200, True)  # Until a request comes.
    assert model.client.resumed == [("", "s")]
    assert model.client.pauses == [
        ("", "s", 1.5, ("search", "read")),
        ("", "s", None, ()),
        ("", "s", None, ()),
        ("", "s", 0.0, ()),
        ("", "s", 86_400.0, ()),
    ]


@pytest.mark.parametrize(
    ("place", "move_s", "message"),
    [
        ("pool", 0.25, "its KV stays in the pool: staying costs others 1.5 ms, moving it down and "
         "up costs 250.0 ms, computing it again costs 2000.0 ms"),
        ("below", 0.25, "its KV goes down, and comes back before the pause is expected to end: "
         "staying costs others 1.5 ms, moving it down and up costs 250.0 ms, computing it again "
         "costs 2000.0 ms"),
        ("dropped", None, "its KV is given up, and computed again when it is needed: staying costs "
         "others 1.5 ms, moving it down and up cannot be done, computing it again costs 2000.0 ms"),
    ],
)  # fmt: skip
async def test_a_decision_shows_its_prices(place: Any, move_s: float | None, message: str) -> None:
    model = await started(served(), "s")
    sessions = model.client.sessions
    prices = PausePrices(stay_s=0.0015, move_s=move_s, recompute_s=2.0)
    sessions["", "s"] = replace(
        sessions["", "s"], paused=True, place=place, expected_s=30.0, prices=prices
    )

    _, body = await call(model, "GET", "s")

    move_ms = None if move_s is None else 250.0
    assert body["prices"] == {"stay_ms": 1.5, "move_ms": move_ms, "recompute_ms": 2000.0}
    assert (body["place"], body["expected_ms"], body["message"]) == (place, 30_000.0, message)


async def test_a_pause_of_a_running_session_is_decided_later_and_says_so() -> None:
    model = await started(served(), "s")

    _, body = await call(model, "POST", "s/pause", json={"expected_ms": 5})

    assert (body["expected_ms"], body["prices"]) == (5.0, None)
    assert body["message"] == "paused while a request of it runs: decided when that ends"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"expected_ms": -1}, "expected_ms"),
        ({"expected_ms": 86_400_001}, "expected_ms"),
        ({"expected_ms": 1.5}, "expected_ms"),
        ({"expected_ms": "5"}, "expected_ms"),
        ({"expected_ms": True}, "expected_ms"),
        ({"tools": "search"}, "tools"),
        ({"tools": [""]}, "tools[0]"),
        ({"tools": ["a", 3]}, "tools[1]"),
        ({"tools": ["x" * 257]}, "tools[0]"),
        ({"tools": ["x"] * 257}, "tools"),
    ],
)
async def test_a_pause_that_cannot_be_is_refused_by_name(fields: Json, param: str) -> None:
    model = await started(served(), "s")

    status, body = await call(model, "POST", "s/pause", json=fields)

    assert (status, body["error"]["param"]) == (400, param)
    assert model.client.pauses == []


async def test_a_pause_is_json() -> None:
    model = await started(served(), "s")

    plain = await call(model, "POST", "s/pause", content=b"{}")
    broken = await call(
        model, "POST", "s/pause", content=b"{", headers={"content-type": "application/json"}
    )

    assert (plain[0], plain[1]["error"]["code"]) == (415, "unsupported_media_type")
    assert (broken[0], broken[1]["error"]["code"]) == (400, "invalid_json")


async def test_a_deleted_session_is_gone() -> None:
    model = await started(served(), "s")

    deleted = await call(model, "DELETE", "s")
    again = await call(model, "DELETE", "s")

    assert deleted == (
        200, {"id": "s", "object": "kokuban.session.deleted", "deleted": True}
    )  # fmt: skip
    assert (again[0], again[1]["error"]["code"]) == (404, "session_not_found")


ROUTES = [
    ("GET", "s", {}),
    ("DELETE", "s", {}),
    ("POST", "s/pause", {"json": {}}),
    ("POST", "s/resume", {}),
]


@pytest.mark.parametrize(("method", "path", "options"), ROUTES)
async def test_a_session_of_another_key_is_as_unknown_as_one_that_never_was(
    method: str, path: str, options: Any
) -> None:
    model = served()
    async with client(model, api_keys=KEYS) as http:

        async def answer(key: str) -> tuple[int, Json]:
            headers = bearer(key)
            response = await http.request(
                method, f"/v1/sessions/{path}", headers=headers, **options
            )
            return response.status_code, response.json()

        never = await answer("two")
        body = {"model": "m", "prompt": "p", "max_tokens": 1, "prompt_cache_key": "s"}
        await http.post("/v1/completions", json=body, headers=bearer("one"))
        others = await answer("two")
        keyless = await http.request(method, f"/v1/sessions/{path}", **options)
        own = await answer("one")

    assert never == others
    assert (others[0], others[1]["error"]["code"]) == (404, "session_not_found")
    assert keyless.status_code == 401
    assert own[0] == 200


@pytest.mark.parametrize(("method", "path", "options"), ROUTES)
async def test_no_name_and_no_cache_are_refused(method: str, path: str, options: Any) -> None:
    model = served()
    long = path.replace("s", "x" * 257, 1)
    refused = [await call(model, method, each, **options) for each in (long, f"%7F{path}")]
    model.client.turn_prefix_cache_off()
    off = await call(model, method, path, **options)

    assert [(status, body["error"]["param"]) for status, body in refused] == [(400, "session")] * 2
    assert (off[0], off[1]["error"]["code"]) == (400, "no_prefix_cache")


async def test_paths_beside_the_routes_are_none() -> None:
    model = await started(served(), "s")

    assert (await call(model, "POST", "s"))[0] == 405
    assert (await call(model, "PUT", "s/pause"))[0] == 405


async def test_the_receipt_says_where_a_session_was_resumed_from() -> None:
    usage = Usage(0, 0, cached_tokens=4, cached_ram_tokens=4, resumed_from="disk")

    answers = [
        await complete(served(engine=FakeEngine(usage=each)), max_tokens=1, n=2)
        for each in (
            usage,
            replace(usage, resumed_from="recompute"),
            replace(usage, resumed_from=""),
        )
    ]

    found = [answer.json()["usage"]["kokuban"]["resumed_from"] for answer in answers]
    assert found == ["disk", "recompute", "ram"]


async def test_the_document_describes_the_routes() -> None:
    async with client(served()) as http:
        document = (await http.get("/openapi.json")).json()

    def answer(path: str, method: str) -> str:
        responses = document["paths"][path][method]["responses"]
        schema: str = responses["200"]["content"]["application/json"]["schema"]["$ref"]
        return schema.rpartition("/")[2]

    path = "/v1/sessions/{session}"
    assert (answer(path, "get"), answer(path, "delete")) == ("SessionBody", "SessionDeleted")
    assert answer(f"{path}/pause", "post") == answer(f"{path}/resume", "post") == "SessionBody"
    body = document["paths"][f"{path}/pause"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/PauseRequest")
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"prompt_cache_key", "prompt_cache_options", "cache_control"} <= set(fields)
