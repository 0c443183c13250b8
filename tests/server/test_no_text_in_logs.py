"""No word of a prompt or an answer is in the log, at any level, nor in what a refusal says.

A canary stands in every place where users write text; every route and many failures are driven.
"""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import ALL_MODULES, client_of, make_app
from tests.server.fakes import FAILS, FakeEngine, served
from tests.server.live import live

from kokuban.core.errors import KokubanError
from kokuban.observe.logs import set_up_logging, traceback_of

CANARY = "kanarienvogel"
ANSWER = "zeisig"
P = ord("l")  # The canary's last character.
A = FIRST_PIECE


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """All that is logged, in the form in which operators see it."""
    stream = io.StringIO()
    names = ("kokuban", "uvicorn", "asyncio")
    before = [
        (logger, logger.handlers[:], logger.level, logger.propagate)
        for logger in map(logging.getLogger, names)
    ]
    set_up_logging("DEBUG", stream, form=request.param)
    logging.getLogger("uvicorn").setLevel(logging.DEBUG)
    yield stream
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": CANARY}], **fields}


def prompt(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": CANARY, "max_tokens": 3, **fields}


def of(content: Any, role: str = "user") -> dict[str, Any]:
    return {"model": "m", "max_tokens": 2, "messages": [{"role": role, "content": content}]}


TOOL = {"type": "function", "function": {"name": "f", "description": CANARY, "parameters": {}}}

BODIES: list[tuple[str, Any]] = [
    ("/v1/chat/completions", chat()),
    ("/v1/chat/completions", chat(stream=True)),
    ("/v1/chat/completions", chat(tools=[TOOL], stop=[CANARY], user=CANARY)),
    ("/v1/chat/completions", chat(temperature="hot", metadata={"k": CANARY})),
    ("/v1/chat/completions", chat(max_tokens=-1)),
    ("/v1/chat/completions", {"model": "m", "messages": CANARY}),
    ("/v1/chat/completions", {"model": "m", "messages": [CANARY]}),
    ("/v1/chat/completions", of([CANARY, 5])),
    ("/v1/chat/completions", of({CANARY: 1})),
    ("/v1/chat/completions", chat(tools=[{"type": "function", "function": CANARY}])),
    ("/v1/chat/completions", chat(chat_template_kwargs={"x": CANARY}, n=2)),
    ("/v1/chat/completions", f'{{"messages": "{CANARY}'),
    ("/v1/completions", prompt()),
    ("/v1/completions", prompt(stream=True, echo=True, logprobs=2)),
    ("/v1/completions", prompt(prompt=[CANARY, CANARY], n=2)),
    ("/v1/completions", prompt(prompt={"text": CANARY})),
    ("/v1/completions", prompt(prompt=[[CANARY]])),
    ("/v1/completions", prompt(suffix=CANARY)),
    ("/v1/completions", prompt(logit_bias={"1": CANARY})),
    ("/v1/completions", prompt(prompt=CANARY * 1000)),
    ("/v1/completions", CANARY),
    ("/v1/embeddings", {"model": "m", "input": CANARY}),
    ("/v1/embeddings", {"model": "m", "input": {"text": CANARY}}),
    ("/v1/responses", {"model": "m", "input": CANARY, "instructions": CANARY}),
    ("/v1/responses", {"model": "m", "input": [{"type": "x", "content": CANARY}]}),
    ("/v1/messages", {"model": "m", "max_tokens": 2, **chat()}),
    ("/v1/messages", of(CANARY, "x")),
    ("/v1/messages/count_tokens", {"model": "m", **chat()}),
    ("/tokenize", {"prompt": CANARY}),
    ("/tokenize", {"prompt": [CANARY]}),
    ("/apply-template", {"messages": [{"role": "user", "content": CANARY}], "model": 7}),
    ("/detokenize", {"tokens": CANARY}),
]  # fmt: skip


async def drive(app: Starlette, **headers: str) -> list[httpx.Response]:
    """Every route with a canary in body and query, and the bodies above."""
    found = []
    async with client_of(app, headers={"content-type": "application/json", **headers}) as http:
        for path, body in BODIES:
            data = body if isinstance(body, str) else json.dumps(body)
            found.append(await http.post(path, content=data))
        for module in ALL_MODULES:
            for route in module.router.routes:
                if "kv_events" in route.path:
                    continue
                for method in sorted(route.methods or ()):
                    path = (
                        route.path.replace("{session:path}", "s").replace("{", "").replace("}", "")
                    )
                    found.append(
                        await http.request(
                            method, f"{path}?q={CANARY}", content=json.dumps({"x": CANARY})
                        )
                    )
    return found


def refusals(answers: list[httpx.Response]) -> list[str]:
    return [answer.text for answer in answers if answer.status_code >= 400]


def app_of(chain: dict[int, int], **settings: Any) -> Starlette:
    model = served(chain, pieces=(ANSWER,), engine=FakeEngine(chain, max_context_tokens=2048))
    return make_app(model, **settings)


async def test_neither_the_log_nor_a_refusal_holds_a_users_text(log: io.StringIO) -> None:
    answers = await drive(app_of({P: A, 10: A, A: EOT}))
    answers += await drive(app_of({P: FAILS}))
    answers += await drive(app_of({P: A, 10: A, A: EOT}, api_keys=("key",)))
    answers += await drive(app_of({P: A, 10: A, A: EOT}, requests_per_minute=1))
    answers += await drive(app_of({}), host="evil.example")

    statuses = {answer.status_code for answer in answers}
    assert {200, 400, 401, 403, 429, 500} <= statuses
    assert sum(answer.status_code == 200 and ANSWER in answer.text for answer in answers) > 3
    text = log.getvalue()
    assert len(text.splitlines()) > 50
    assert CANARY not in text
    assert ANSWER not in text
    assert [each for each in refusals(answers) if CANARY in each] == []


async def test_a_fault_whose_text_holds_a_prompt_is_logged_without_it(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = served({P: A, 10: A, A: EOT})

    def broken(text: str, **options: Any) -> list[int]:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(f"cannot read {text}") from error

    monkeypatch.setattr(model.tokenizer, "encode", broken)
    async with client_of(make_app(model)) as http:
        response = await http.post("/v1/completions", json=prompt())

    assert response.status_code == 500
    assert CANARY not in response.text
    text = log.getvalue()
    assert CANARY not in text
    assert "ValueError" in text
    assert "KeyError" in text
    assert "in broken" in text


async def test_a_fault_in_mid_stream_and_bad_http_leave_no_text(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real server, whose HTTP library logs as well."""
    model = served({P: A, A: A}, pieces=(ANSWER,), engine=FakeEngine({P: A, A: A}))
    decode = model.tokenizer.decode

    def broken(ids: Any, **options: Any) -> str:
        raise ValueError(decode(ids, **options))

    with live(model) as url, httpx.Client(base_url=url) as http:
        http.get(f"/v1/models?q={CANARY}")
        http.post(f"/{CANARY}", content=CANARY)
        monkeypatch.setattr(
            type(model.tokenizer), "decode", lambda self, ids, **o: broken(ids, **o)
        )
        http.post("/v1/completions", json=prompt(stream=True))
        http.post("/detokenize", json={"tokens": [A]})

    assert ANSWER not in log.getvalue()
    assert CANARY not in log.getvalue()


def test_texts_that_are_ours_are_shown_and_all_are_when_asked_for() -> None:
    def chain() -> BaseException:
        try:
            try:
                raise ValueError(CANARY)
            except ValueError as error:
                raise KokubanError("the pool is too small") from error
        except KokubanError as error:
            return error

    error = chain()

    assert "KokubanError: the pool is too small\n\nafter:\n\n" in traceback_of(error)
    assert traceback_of(error).endswith("ValueError")
    assert traceback_of(error, with_texts=True).endswith(f"ValueError: {CANARY}")
    assert traceback_of(None) == ""
