"""What is refused on the paths of Anthropic's API has its envelope, whoever refuses it."""

import pytest
from tests.server.asgi import Json, client
from tests.server.fakes import served

PATH = "/v1/messages"
KEY = {"x-api-key": "k"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        ("POST", PATH, {}, 401, "authentication_error"),
        ("POST", PATH, {**KEY, "host": "evil.example"}, 403, "permission_error"),
        ("POST", f"{PATH}/batches", KEY, 404, "not_found_error"),
        ("POST", PATH, {**KEY, "x-filler": "x" * 40_000}, 431, "invalid_request_error"),
    ],
)
async def test_what_the_guard_and_the_router_refuse(
    method: str, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    async with client(served(), api_keys=("k",)) as http:
        response = await http.request(method, path, headers=headers)

    assert response.status_code == status
    body: Json = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"]
    assert response.headers["x-request-id"] == response.headers["request-id"]


async def test_the_client_may_name_its_request() -> None:
    async with client(served(), api_keys=("k",)) as http:
        response = await http.post(PATH, headers={"x-request-id": "mine"})

    assert response.json()["request_id"] == response.headers["request-id"] == "mine"


async def test_other_paths_keep_openais_envelope() -> None:
    async with client(served(), api_keys=("k",)) as http:
        for path in ("/v1/messagesx", "/v1/chat/completions", "/v1/message"):
            body = (await http.post(path)).json()
            assert set(body["error"]) == {"message", "type", "param", "code"}
