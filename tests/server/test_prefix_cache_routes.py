"""Salts, the reset route and what usage says of the prefix cache."""

from typing import Any

import pytest
from tests.server.asgi import chat, client, complete
from tests.server.fakes import FakeEngine, served

from kokuban.server.key_file import tenant_of

ROUTE = "/reset_prefix_cache"


async def test_the_salt_and_the_key_reach_the_engine() -> None:
    model = served()
    async with client(model, api_keys=("one", "two")) as http:
        for key, salt in (("one", "s"), ("two", None)):
            body = {"model": "m", "prompt": "p", "max_tokens": 1, "cache_salt": salt}
            headers = {"authorization": f"Bearer {key}"}
            response = await http.post("/v1/completions", json=body, headers=headers)
            assert response.status_code == 200

    found = [(request.tenant, request.cache_scope) for request in model.client.submitted]
    assert found == [(tenant_of(b"one"), "s"), (tenant_of(b"two"), "")]


async def test_a_chat_has_a_salt_too() -> None:
    model = served()

    assert (await chat(model, max_tokens=1, cache_salt="s")).status_code == 200

    assert [request.cache_scope for request in model.client.submitted] == ["s"]


@pytest.mark.parametrize("salt", ["", 5, True, ["s"], "x" * 1025])
async def test_a_salt_that_is_no_text_or_empty_is_refused(salt: object) -> None:
    """Bugbank B64."""
    model = served()

    for response in (await chat(model, cache_salt=salt), await complete(model, cache_salt=salt)):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "cache_salt"
    assert model.client.submitted == []


@pytest.mark.parametrize("cached", [0, 3])
async def test_usage_always_tells_how_many_tokens_were_cached(cached: int) -> None:
    engine = FakeEngine(cached_tokens=cached)
    response = await complete(served(engine=engine), "some text", max_tokens=2)

    details = {"cached_tokens": cached, "cache_write_tokens": 0}
    assert response.json()["usage"]["prompt_tokens_details"] == details


ADMIN = {"authorization": "Bearer admin"}


async def test_the_cache_can_be_reset_by_who_runs_the_server() -> None:
    model = served()
    async with client(model, admin_keys=("admin",)) as http:
        response = await http.post(ROUTE, headers=ADMIN)

    assert (response.status_code, response.json()) == (200, {"forgotten_blocks": 5})
    assert model.client.resets == 1


async def test_a_key_that_may_only_infer_does_not_reset_what_all_share() -> None:
    model = served()
    async with client(model, api_keys=("secret",), host="0.0.0.0") as http:
        keyless = await http.post(ROUTE)
        refused = await http.post(ROUTE, headers={"authorization": "Bearer secret"})

    assert (keyless.status_code, refused.status_code) == (401, 403)
    assert refused.json()["error"]["code"] == "scope_missing"
    assert "infer, metrics" in refused.json()["error"]["message"]
    assert model.client.resets == 0


@pytest.mark.parametrize("settings", [{}, {"host": "0.0.0.0", "no_auth": True}])
async def test_without_keys_the_reset_is_closed(settings: dict[str, Any]) -> None:
    model = served()
    async with client(model, **settings) as http:
        response = await http.post(ROUTE)

    assert response.status_code == 403
    assert response.json()["error"]["code"] == "admin_closed"
    assert model.client.resets == 0


async def test_a_reset_is_no_get_and_fails_with_the_engine() -> None:
    model = served()
    model.client.dead = True
    async with client(model, admin_keys=("admin",), headers=ADMIN) as http:
        assert (await http.get(ROUTE)).status_code == 405
        assert (await http.post(ROUTE)).status_code == 500
