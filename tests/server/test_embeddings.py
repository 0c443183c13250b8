"""POST /v1/embeddings around a fake engine: bodies, limits, and what the engine is asked."""

import base64
import struct
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.server.asgi import Call, client, make_app
from tests.server.fakes import FAILS, FakeEngine, Served, fake_vector, served
from tests.server.live import live

from kokuban.core.pooling import PoolingParams


async def embed(model: Served, given: Any, **fields: Any) -> httpx.Response:
    async with client(model) as http:
        return await http.post("/v1/embeddings", json={"model": "m", "input": given, **fields})


def vectors(response: httpx.Response) -> list[tuple[float, ...]]:
    """The vectors of an answer in floats, checked to be numbered in order."""
    assert response.status_code == 200, response.text
    data = response.json()["data"]
    assert [(item["object"], item["index"]) for item in data] == [
        ("embedding", index) for index in range(len(data))
    ]
    return [tuple(item["embedding"]) for item in data]


def numbers(prompt: list[int]) -> tuple[float, ...]:
    return struct.unpack("<4f", fake_vector(prompt))


async def refusal(model: Served, given: Any, **fields: Any) -> tuple[str, str | None, str | None]:
    """Message, param and code of a 400 that never reached the engine."""
    response = await embed(model, given, **fields)
    assert response.status_code == 400, response.text
    assert model.client.submitted == []
    error = response.json()["error"]
    return error["message"], error["param"], error["code"]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_every_kind_of_input_gives_a_vector_for_each(
    given: Any, prompts: list[list[int]]
) -> None:
    model = served()

    response = await embed(model, given)

    assert vectors(response) == [numbers(prompt) for prompt in prompts]
    assert [list(r.prompt_token_ids) for r in model.client.submitted] == prompts


async def test_the_answer_has_openais_shape_and_counts_the_tokens_of_all_inputs() -> None:
    body = (await embed(served(), ["ab", "c"])).json()

    assert list(body) == ["object", "data", "model", "usage"]
    assert (body["object"], body["model"]) == ("list", "m")
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == 3
    assert "completion_tokens" not in body["usage"]


async def test_base64_is_the_numbers_as_the_engine_made_them() -> None:
    body = (await embed(served(), ["ab"], encoding_format="base64")).json()

    assert base64.b64decode(body["data"][0]["embedding"]) == fake_vector([97, 98])


async def test_all_inputs_are_one_group_with_the_clients_wishes() -> None:
    model = served()

    await embed(
        model,
        ["a", "b"],
        pooling="mean",
        normalize=False,
        dimensions=3,
        priority=2,
        cache_salt="s",
        user="u",
    )

    wanted = PoolingParams(pooling="mean", normalize=False, dimensions=3)
    for request in model.client.submitted:
        assert request.pooling == wanted
        assert (request.priority, request.cache_scope) == (2, "s")
    assert len({request.id for request in model.client.submitted}) == 2


async def test_the_operator_chooses_how_vectors_are_made_and_a_client_may_differ() -> None:
    model = served()

    async with client(model, pooling="mean") as http:
        for fields in ({}, {"pooling": "last"}):
            body = {"model": "m", "input": "a", **fields}
            await http.post("/v1/embeddings", json=body)

    kinds = [request.pooling.pooling for request in model.client.submitted if request.pooling]
    assert kinds == ["mean", "last"]
    assert model.client.submitted[0].pooling == PoolingParams(pooling="mean", normalize=True)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("given", ["", [""], ["a", ""], [], [[]], [[5], []], None])
async def test_an_empty_input_is_refused_and_the_next_request_is_served(
    given: Any, add_bos: bool
) -> None:
    """B36, and as OpenAI: also where a text that is empty would have a first token."""
    model = served(add_bos=add_bos)

    message, param, _ = await refusal(model, given)

    assert param == "input"
    assert "empty" in message or "input" in message
    assert (await embed(model, "a")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ["a", 5]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": [512]}, "input"),
        ({"input": [[1], [-1]]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 5}, "dimensions"),
        ({"pooling": "cls"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 4097}, "truncate_prompt_tokens"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """B28, B27: ids outside of the vocabulary never reach the engine."""
    _, named, _ = await refusal(served(), **{"given": "a", **_given(fields)})

    assert named == param


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {("given" if name == "input" else name): value for name, value in fields.items()}


async def test_dimensions_above_the_models_name_both() -> None:
    message, _, _ = await refusal(served(), "a", dimensions=5)

    assert "dimensions=5 is above 4" in message


async def test_an_input_longer_than_the_context_names_both_numbers_and_the_way_out() -> None:
    model = served(engine=FakeEngine(max_context_tokens=4))

    message, param, code = await refusal(model, [[1], [1, 2, 3, 4, 5]])

    assert "input[1] has 5 tokens, but the context holds 4" in message
    assert "truncate_prompt_tokens" in message
    assert (param, code) == ("input", "context_length_exceeded")


async def test_an_input_may_fill_the_whole_context() -> None:
    model = served(engine=FakeEngine(max_context_tokens=4))

    assert vectors(await embed(model, [1, 2, 3, 4])) == [numbers([1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("limit", "kept"), [(2, [4, 5]), (5, [1, 2, 3, 4, 5]), (-1, [2, 3, 4, 5]), (1, [5])]
)
async def test_a_long_input_is_cut_at_its_beginning_where_the_client_allows_it(
    limit: int, kept: list[int]
) -> None:
    context = 4 if limit < 0 else 8
    model = served(engine=FakeEngine(max_context_tokens=context))

    response = await embed(model, [1, 2, 3, 4, 5], truncate_prompt_tokens=limit)

    assert vectors(response) == [numbers(kept)]


async def test_a_text_that_is_cut_keeps_the_token_that_begins_it() -> None:
    model = served(add_bos=True)
    [[*first]] = [r.prompt_token_ids for r in (await _submitted(model, "abcd"))]

    [cut] = await _submitted(model, "abcd", truncate_prompt_tokens=3)
    [shortest] = await _submitted(model, "abcd", truncate_prompt_tokens=1)
    [bare] = await _submitted(model, "abcd", add_special_tokens=False)

    assert cut.prompt_token_ids == (first[0], 99, 100)
    assert shortest.prompt_token_ids == (100,)
    assert bare.prompt_token_ids == (97, 98, 99, 100)


async def _submitted(model: Served, given: Any, **fields: Any) -> list[Any]:
    before = len(model.client.submitted)
    assert (await embed(model, given, **fields)).status_code == 200
    return model.client.submitted[before:]


async def test_the_number_of_inputs_and_of_their_tokens_have_limits() -> None:
    message, _, _ = await refusal(served(), ["a"] * 2049)
    assert "2049 inputs; the limit of one request is 2048" in message

    message, _, _ = await refusal(served(), [[1] * 4000] * 76)
    assert "the first 76 of 76 inputs have 304000 tokens" in message
    assert "300000" in message


async def test_a_full_queue_refuses_the_whole_request() -> None:
    model = served(engine=FakeEngine(seats=1, max_waiting=0))
    app = make_app(model)
    model.client.pause()
    running = Call(app, "/v1/embeddings", {"model": "m", "input": "a"})
    await model.client.until(running=1)

    response = await embed(model, ["b", "c"])

    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert len(model.client.submitted) == 1
    model.client.resume()
    await running.end()
    assert running.status == 200


async def test_a_client_that_leaves_ends_its_inputs() -> None:
    model = served(engine=FakeEngine(seats=1))
    model.client.pause()
    call = Call(make_app(model), "/v1/embeddings", {"model": "m", "input": ["a", "b"]})
    await model.client.until(running=2)

    call.leave()
    await call.end()

    await model.client.until(running=0)


async def test_an_input_that_fails_fails_the_request() -> None:
    response = await embed(served({98: FAILS}), ["a", "b"])

    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_error"


async def test_metrics_and_log_know_the_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kokuban.server.record")
    async with client(served()) as http:
        await http.post("/v1/embeddings", json={"model": "m", "input": ["ab", "c"]})
        metrics = (await http.get("/metrics")).text

    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("embeddings id=")
    assert " prompt=3 " in line
    assert line.endswith(" finish=stop")
    assert 'kokuban:prompt_tokens_total{model_name="m"} 3.0' in metrics
    assert 'kokuban:time_to_first_token_seconds_count{model_name="m"} 0.0' in metrics


def test_the_openai_client_gets_numbers_with_and_without_base64() -> None:
    """The client asks for base64 unless it is told otherwise, and decodes it itself."""
    with live(served()) as url, OpenAI(base_url=f"{url}/v1", api_key="k") as sdk:
        default = sdk.embeddings.create(model="m", input=["ab", "c"])
        floats = sdk.embeddings.create(model="m", input="ab", encoding_format="float")
        ids = sdk.embeddings.create(model="m", input=[[5, 6], [7]], dimensions=4)

    assert [tuple(each.embedding) for each in default.data] == [numbers([97, 98]), numbers([99])]
    assert tuple(floats.data[0].embedding) == numbers([97, 98])
    assert [tuple(each.embedding) for each in ids.data] == [numbers([5, 6]), numbers([7])]
    assert default.usage.prompt_tokens == default.usage.total_tokens == 3


async def test_many_inputs_come_back_in_their_order() -> None:
    given = [[index % 512, index // 512 + 1] for index in range(2048)]

    response = await embed(served(engine=FakeEngine(max_waiting=4096)), given)

    assert vectors(response) == [numbers(row) for row in given]
