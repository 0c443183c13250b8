"""What an answer holds only when it is asked for, and what it may hold at most."""

import pytest
from tests.fakes_text import EOT
from tests.server.asgi import Json, chat, client, complete, events_of
from tests.server.fakes import FakeEngine, served

from kokuban.core.errors import RequestError
from kokuban.core.sampling_params import SamplingParams
from kokuban.server.answer_size import MAX_LOGPROBS_OF_ANSWER, check_num_logprobs

CHAIN = {10: ord("a"), ord("p"): ord("a"), ord("a"): ord("b"), ord("b"): EOT}
AB = [ord("a"), ord("b"), EOT]


async def test_token_ids_come_with_a_chat_when_they_are_asked_for() -> None:
    model = served(CHAIN)

    plain = (await chat(model)).json()
    body = (await chat(model, return_token_ids=True)).json()

    prompt = list(model.client.submitted[1].prompt_token_ids)
    assert body["prompt_token_ids"] == prompt
    assert body["choices"][0]["token_ids"] == AB
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]


async def test_a_stream_tells_every_id_once_and_those_of_the_prompt_first() -> None:
    model = served(CHAIN)

    events = events_of(await chat(model, return_token_ids=True, stream=True, n=2))

    choices = [event["choices"][0] for event in events]
    prompt = list(model.client.submitted[0].prompt_token_ids)
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["prompt_token_ids"] == prompt
        assert all("prompt_token_ids" not in choice for choice in mine[1:])
        assert [token for choice in mine for token in choice.get("token_ids", [])] == AB


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_come_with_a_completion(stream: bool) -> None:
    response = await complete(served(CHAIN), ["p", "b"], return_token_ids=True, stream=stream)

    bodies = events_of(response) if stream else [response.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    ids = {
        index: [t for choice in choices if choice["index"] == index for t in choice["token_ids"]]
        for index in (0, 1)
    }
    prompts = [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice]
    assert ids == {0: AB, 1: [EOT]}
    assert sorted(prompts) == [[ord("b")], [ord("p")]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tier_is_told_to_who_asks_for_one(stream: bool) -> None:
    asked = await chat(served(CHAIN), service_tier="flex", stream=stream)
    plain = await chat(served(CHAIN), stream=stream)

    bodies = events_of(asked) if stream else [asked.json()]
    assert {body["service_tier"] for body in bodies} == {"default"}
    assert b"service_tier" not in plain.content


async def test_tokens_of_thoughts_are_counted_also_when_they_are_not_shown() -> None:
    pieces = ["<think>", "hm", "</think>", "yes"]
    ids = list(range(262, 266))
    chain = dict(zip([10, *ids], [*ids, EOT], strict=True))

    async with client(served(chain, pieces=pieces), reasoning_parser="think") as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "p"}]}
        answer = (await http.post("/v1/chat/completions", json=body)).json()

        hidden = (
            await http.post("/v1/chat/completions", json={**body, "include_reasoning": False})
        ).json()
        stream = await http.post(
            "/v1/chat/completions", json={**body, "include_reasoning": False, "stream": True}
        )

    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "yes")
    assert hidden["choices"][0]["message"] == {
        "content": "yes",
        "role": "assistant",
        "refusal": None,
    }
    assert hidden["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert [event["choices"][0]["delta"] for event in events_of(stream)] == [
        {"role": "assistant", "content": ""}, {"content": "yes"}, {},
    ]  # fmt: skip
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}


FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]
PRE, SUF, MID, PAD = range(262, 266)


async def test_a_gap_is_filled_by_a_model_that_has_tokens_for_it() -> None:
    model = served({MID: ord("x"), ord("x"): PAD}, pieces=FIM, add_bos=True)

    response = await complete(model, ["f(", "g("], suffix=")", max_tokens=9)

    texts = [choice["text"] for choice in response.json()["choices"]]
    prompts = [request.prompt_token_ids for request in model.client.submitted]
    assert prompts == [(256, PRE, ord(name), 40, SUF, 41, MID) for name in "fg"]
    assert texts == ["x", "x"]
    assert {choice["finish_reason"] for choice in response.json()["choices"]} == {"stop"}


@pytest.mark.parametrize(
    ("fields", "pieces", "param"),
    [
        ({"suffix": ")"}, [], "suffix"),
        ({"suffix": ")", "echo": True}, FIM, "echo"),
        ({"suffix": 5}, FIM, "suffix"),
    ],
)
async def test_a_gap_that_cannot_be_filled_is_refused(
    fields: Json, pieces: list[str], param: str
) -> None:
    response = await complete(served(pieces=pieces), "f(", **fields)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_what_an_answer_may_hold_is_bounded_before_anything_runs() -> None:
    most = MAX_LOGPROBS_OF_ANSWER // 21
    fits = SamplingParams(logprobs=20, max_tokens=most)
    above = SamplingParams(logprobs=20, max_tokens=most + 1)
    prompt = [[1]]

    check_num_logprobs(fits, prompt, 10**9, stream=False)
    check_num_logprobs(above, prompt, 10**9, stream=True)
    check_num_logprobs(above, prompt, most + 1, stream=False)
    check_num_logprobs(SamplingParams(n=128), prompt, 10**9, stream=False)
    with pytest.raises(RequestError, match=r"could hold 4,194,309 logprobs") as raised:
        check_num_logprobs(above, prompt, 10**9, stream=False)
    assert raised.value.param == "logprobs"


def test_an_echoed_prompt_counts_also_in_a_stream() -> None:
    params = SamplingParams(prompt_logprobs=20, max_tokens=0, n=4)

    with pytest.raises(RequestError, match="logprobs"):
        check_num_logprobs(params, [[1] * 50_000], 10**9, stream=True)


async def test_too_many_logprobs_are_refused_by_both_routes() -> None:
    model = served(engine=FakeEngine(max_context_tokens=10_000))
    fields = {"max_tokens": 5000, "n": 128}

    first = await chat(model, logprobs=True, top_logprobs=20, **fields)
    second = await complete(model, logprobs=20, **fields)

    assert first.status_code == second.status_code == 400
    assert first.json()["error"]["param"] == second.json()["error"]["param"] == "logprobs"
    assert model.client.submitted == []


@pytest.mark.parametrize(
    ("path", "allow"),
    [("/v1/sessions/s", "DELETE, GET"), ("/v1/chat/completions", "POST"), ("/health", "GET, HEAD")],
)
async def test_a_wrong_method_is_told_all_right_ones(path: str, allow: str) -> None:
    """Keeps B84 out: docs/bugbank.md."""
    async with client(served()) as http:
        response = await http.request("PATCH", path)

    assert response.status_code == 405
    assert response.headers["allow"] == allow
    assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenizer_info", "/get_server_info"])
async def test_paths_that_tools_of_other_servers_try_are_a_clean_404(path: str) -> None:
    async with client(served()) as http:
        response = await http.get(path)

    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_prompt_that_is_too_long_is_never_cut() -> None:
    """Keeps B40 out: docs/bugbank.md."""
    model = served(engine=FakeEngine(max_context_tokens=200))
    filler = {"role": "user", "content": "word " * 200}
    messages = [{"role": "system", "content": "CODE=7"}, filler, {"role": "user", "content": "?"}]

    async with client(model) as http:
        body = {"model": "m", "messages": messages}
        response = await http.post("/v1/chat/completions", json=body)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert model.client.submitted == []
