"""A server listens before the routes that read bodies are imported; who is early waits for them."""

import asyncio
import json
import subprocess
import sys

from tests.server.asgi import client_of
from tests.server.fakes import served

from kokuban.server.app import FIRST_MODULES, create_app
from kokuban.server.faces import MODULES
from kokuban.server.settings import ServerSettings

BODY = {"model": "m", "messages": [{"role": "user", "content": "p"}], "max_tokens": 1}

ASK = """
import asyncio, json, sys
import httpx
from tests.server.fakes import served
from kokuban.server.app import create_app

model = served()
for name in [name for name in sys.modules if name.startswith(("pydantic", "kokuban.server.cha"))]:
    del sys.modules[name]

async def main():
    app = create_app(model)
    transport = httpx.ASGITransport(app=app)
    found = []
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for method, path in json.loads(sys.argv[1]):
            answer = await http.request(method, path)
            found.append([answer.status_code, "kokuban.server.faces" in sys.modules])
    print(json.dumps(found))

asyncio.run(main())
"""


def test_machines_that_watch_do_not_wait_for_the_other_routes() -> None:
    asked = [["GET", "/health"], ["GET", "/ready"], ["GET", "/metrics"], ["GET", "/v1/models"]]
    asked += [["GET", "/"], ["POST", "/ready"], ["GET", "/nothing"]]
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(asked)], capture_output=True, text=True, check=True
    )

    early = [[200, False]] * 5 + [[405, False]]
    assert json.loads(done.stdout) == [*early, [404, True]]


async def test_requests_that_come_early_are_answered_all() -> None:
    app = create_app(served(), ServerSettings())
    first = len(app.routes)
    async with client_of(app) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", json=BODY) for _ in range(3)),
            http.get("/openapi.json"),
            http.get("/nothing"),
            http.get("/v1/messages"),
        )

    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404, 405]
    described = json.loads(answers[3].content)["paths"]
    assert {"/v1/chat/completions", "/v1/messages", "/ready"} <= set(described)
    assert first == sum(len(module.router.routes) for module in FIRST_MODULES)
    # Once, whoever asked: and one for the document.
    assert len(app.routes) == first + sum(len(module.router.routes) for module in MODULES) + 1
