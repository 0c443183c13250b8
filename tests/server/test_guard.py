"""Who may come in: keys, host names, origins. A new route is closed until it is listed."""

import pytest
from starlette.routing import Route
from tests.server.asgi import client, client_of, make_app
from tests.server.fakes import served

from kokuban.core.errors import ConfigError
from kokuban.server.app import MODULES
from kokuban.server.guard import PUBLIC, tenant_of
from kokuban.server.settings import ServerSettings

KEY = "s3cret"
GOOD = {"authorization": f"Bearer {KEY}"}
BODY = {"model": "m", "prompt": "p", "max_tokens": 1}


async def test_every_route_but_the_listed_ones_wants_the_key() -> None:
    """Keeps B94 out: docs/bugbank.md."""
    app = make_app(served(), api_keys=(KEY,))
    routes = [route for module in MODULES for route in module.router.routes]
    paths = [route.path for route in routes if isinstance(route, Route)]
    assert len(paths) == len(routes) >= 15
    assert set(PUBLIC) <= set(paths)
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

    assert str(caught.value) == "port=70000 is not between 0 and 65535; drain_s=-1 is negative"


ORIGIN = "https://page.example"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def test_a_preflight_needs_no_key_and_a_refusal_can_be_read() -> None:
    """Keeps B95 out: docs/bugbank.md."""
    settings = {"api_keys": (KEY,), "cors_origins": (ORIGIN,)}
    async with client(served(), **settings) as http:
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)
        refused = await http.post("/v1/completions", json=BODY, headers={"origin": ORIGIN})

    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
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


async def test_other_pages_are_not_let_in_by_default() -> None:
    async with client(served()) as http:
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)

    assert preflight.status_code == 405
    assert "access-control-allow-origin" not in preflight.headers
