"""Who may come in: keys, host names, origins. A new route is closed until it is listed."""

import json
from typing import Any

import pytest
from starlette.routing import Route
from tests.server.asgi import ALL_MODULES, client, client_of, make_app
from tests.server.fakes import served

from kokuban.core.errors import ConfigError
from kokuban.core.session import SessionStatus
from kokuban.server.key_file import tenant_of
from kokuban.server.routes import Endpoint
from kokuban.server.scopes import KeyScope
from kokuban.server.settings import ServerSettings

KEY = "s3cret"
GOOD = {"authorization": f"Bearer {KEY}"}
BODY = {"model": "m", "prompt": "p", "max_tokens": 1}


PUBLIC = {"/", "/health", "/ready", "/favicon.ico"}
PUBLIC |= {"/static/page.css", "/static/page.js", "/static/icon.svg"}
"""A route that is to answer without a key must be written down here as well."""


async def test_every_route_but_the_listed_ones_wants_the_key() -> None:
    """B94: a new route fails this test until somebody has decided."""
    app = make_app(served(), api_keys=(KEY,))
    routes = [route for module in ALL_MODULES for route in module.router.routes]
    paths = [route.path for route in routes if isinstance(route, Route)]
    assert len(paths) == len(routes) >= 15
    assert set(paths) >= PUBLIC
    paths += ["//v1/chat/completions", "/v1/./chat/completions", "/V1/chat/completions"]
    paths += ["/v1/chat/completions/", "/health/", "//health", "/nothing", "/openapi.json"]
    async with client_of(app) as http:
        for path in paths:
            for method in ("GET", "POST", "HEAD", "OPTIONS"):
                response = await http.request(method, f"http://localhost{path}")
                if path in PUBLIC:
                    assert response.status_code in (200, 405), (method, path)
                else:
                    assert response.status_code == 401, (method, path)
                    assert response.headers["www-authenticate"] == "Bearer"


def test_every_route_says_what_right_it_wants() -> None:
    """B94: deny by default."""
    for route in make_app(served()).routes:
        assert isinstance(route, Route)
        assert isinstance(route.endpoint, Endpoint), f"{route.path} is not made by a Router"
        assert (route.endpoint.scope is KeyScope.PUBLIC) == (route.path in PUBLIC), route.path


async def test_the_engine_sees_nothing_of_a_request_without_a_key() -> None:
    """Keeps B94 out: docs/bugbank.md."""
    model = served()
    async with client(model, api_keys=(KEY,)) as http:
        refused = await http.post("/v1/completions", json=BODY)
        taken = await http.post("/v1/completions", json=BODY, headers=GOOD)

    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert taken.status_code == 200
    assert len(model.client.submitted) == 1


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer {KEY}", 200),
        (f"Bearer {KEY} ", 401),
        (f"Bearer  {KEY}", 401),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("", 401),
        (f"Bearer {KEY}x", 401),
        ("Bearer ключ", 401),
    ],
)
async def test_only_the_key_itself_opens(value: str, status: int) -> None:
    """B94"""
    async with client(served(), api_keys=(KEY,)) as http:
        response = await http.get("/v1/models", headers={b"authorization": value.encode()})

    assert response.status_code == status


async def test_two_authorization_headers_are_none() -> None:
    headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer x")]
    async with client(served(), api_keys=(KEY,)) as http:
        response = await http.get("/v1/models", headers=headers)

    assert response.status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x-api-key", KEY)], 200),
        ([("x-api-key", "")], 401),
        ([("x-api-key", "x")], 401),
        ([("x-api-key", f"Bearer {KEY}")], 401),
        ([("x-api-key", KEY), ("x-api-key", KEY)], 401),
        ([("x-api-key", "x"), ("authorization", f"Bearer {KEY}")], 200),
        ([("x-api-key", KEY), ("authorization", "Bearer x")], 401),
    ],
)
async def test_a_key_may_come_as_anthropics_clients_send_it(
    headers: list[tuple[str, str]], status: int
) -> None:
    """Authorization counts alone where it is there: one request never has two tenants."""
    async with client(served(), api_keys=(KEY,)) as http:
        response = await http.get("/v1/models", headers=headers)

    assert response.status_code == status


async def test_each_key_is_a_tenant() -> None:
    model = served()
    async with client(model, api_keys=("a", "b")) as http:
        for key in ("b", "a"):
            headers = {"authorization": f"Bearer {key}"}
            await http.post("/v1/completions", json=BODY, headers=headers)

    tenants = [request.tenant for request in model.client.submitted]
    assert tenants == [tenant_of(b"b"), tenant_of(b"a")]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("[0:0:0:0:0:0:0:1]", 200),
        ("127.8.9.10", 200),
        ("localhost.:8000", 200),
        ("LOCALHOST", 200),
        ("box.example.", 200),
        ("localhost:evil", 403),
        ("localhost:8000:80", 403),
        ("evil.example:127.0.0.1", 403),
        ("localhost@evil.example", 403),
        ("[::1", 403),
        ("[::2]:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("2130706433", 403),
        ("192.168.1.2", 403),
        ("box.example", 200),
        ("BOX.example:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
async def test_a_name_that_is_not_ours_is_refused_on_loopback(host: str, status: int) -> None:
    async with client(served(), allowed_hosts=("box.example",)) as http:
        response = await http.get("/health", headers={"host": host})

    assert response.status_code == status


async def test_any_name_will_do_beyond_loopback_unless_some_are_listed() -> None:
    any_name = ServerSettings(host="0.0.0.0", no_auth=True)
    listed = ServerSettings(host="0.0.0.0", no_auth=True, allowed_hosts=("box.example",))

    assert any_name.allows_host("evil.example")
    assert not listed.allows_host("evil.example")
    assert listed.allows_host("box.example:8000")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.example"])
def test_nobody_listens_beyond_loopback_by_accident(host: str) -> None:
    with pytest.raises(ConfigError, match="add --api-key KEY, or --no-auth"):
        ServerSettings(host=host)

    assert ServerSettings(host=host, api_keys=(KEY,)).api_keys == (KEY,)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServerSettings(host=host).on_loopback


@pytest.mark.parametrize("key", ["", " x", "x ", "schlüssel", "a\nb"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="API key"):
        ServerSettings(api_keys=(key,))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings(port=70_000, drain_s=-1)

    assert str(caught.value) == (
        "port=70000 is not between 0 and 65535; drain_s=-1 is negative or no number"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"ssl_certfile": "c"}, "needs both"),
        ({"api_keys": ("a", "a")}, "given twice"),
        ({"api_keys": ("a",), "admin_keys": ("a",)}, "given twice"),
        ({"request_timeout_s": float("nan")}, "request_timeout_s=nan"),
        ({"header_timeout_s": 0}, "header_timeout_s=0"),
        ({"slow_client_s": float("inf")}, "slow_client_s=inf"),
        ({"max_connections": 0}, "max_connections=0"),
        ({"tokens_per_minute": -1}, "tokens_per_minute=-1"),
    ],
)
def test_a_setting_that_cannot_work_is_told(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ServerSettings(**settings)


ORIGIN = "https://page.example"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-api-key,x-stainless-os",
}


async def test_a_preflight_needs_no_key_and_a_refusal_can_be_read() -> None:
    """B95"""
    settings = {"api_keys": (KEY,), "cors_origins": (ORIGIN,)}
    async with client(served(), **settings) as http:
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)
        refused = await http.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})

    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    assert "x-api-key" in preflight.headers["access-control-allow-headers"].lower()
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["access-control-allow-credentials"] == "true"
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ORIGIN


async def test_all_origins_never_come_with_credentials() -> None:
    """Keeps B95 out: docs/bugbank.md."""
    async with client(served(), cors_origins=("*",)) as http:
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)

    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in preflight.headers


@pytest.mark.parametrize(("keys", "status"), [((), 405), ((KEY,), 401)])
async def test_other_pages_are_not_let_in_by_default(keys: tuple[str, ...], status: int) -> None:
    """B95"""
    async with client(served(), api_keys=keys) as http:
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)

    assert preflight.status_code == status
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:8000"}, 200),
        ({"origin": "https://LOCALHOST:8000"}, 200),  # A proxy took the TLS away.
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": ORIGIN}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:9000"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "http://localhost:x"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
async def test_a_page_of_somebody_else_changes_nothing_without_a_key(
    headers: dict[str, str], status: int
) -> None:
    """What has no body has no content type that would give a web page away."""
    model = served()
    model.client.sessions["", "s"] = SessionStatus(
        id="s", active=False, paused=True, num_tokens=1, num_blocks=1
    )
    async with client(model) as http:
        response = await http.post(
            "/v1/sessions/s/resume", headers={"host": "localhost:8000", **headers}
        )

    assert response.status_code == status
    assert bool(model.client.resumed) == (status == 200)
    if status == 403:
        assert response.json()["error"]["code"] == "origin_not_allowed"


async def test_a_page_that_is_let_in_or_has_a_key_may_change_things() -> None:
    async with client(served(), cors_origins=(ORIGIN,)) as http:
        allowed = await http.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})
    async with client(served(), api_keys=(KEY,)) as http:
        keyed = await http.post("/v1/completions", json=BODY, headers={"origin": "x", **GOOD})

    assert (allowed.status_code, keyed.status_code) == (200, 200)


async def test_a_form_of_a_web_page_is_no_request() -> None:
    model = served()
    async with client(model) as http:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            response = await http.post(
                "/v1/completions", content=json.dumps(BODY), headers={"content-type": kind}
            )
            assert response.status_code == 415
    assert model.client.submitted == []


async def test_no_answer_is_taken_for_something_else_than_it_says() -> None:
    async with client(served(), api_keys=(KEY,)) as http:
        answers = [await http.get(path) for path in ("/", "/health", "/v1/models", "/nothing")]

    assert [a.headers["x-content-type-options"] for a in answers] == ["nosniff"] * 4
    assert "frame-ancestors 'none'" in answers[0].headers["content-security-policy"]
