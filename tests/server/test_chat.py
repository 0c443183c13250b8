"""/v1/chat/completions: shapes, streams, ends, logprobs."""

from typing import Any

import pytest
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Json, chat, client, events_of
from tests.server.fakes import FakeEngine, served

from kokuban.core.step import Usage

P = 10  # The newline after "assistant", with which the fake template ends.
A, B, C = range(FIRST_PIECE, FIRST_PIECE + 3)
PIECES = ("Hello", " world", "END")
CHAIN = {P: A, A: B, B: EOT}
COSTS = Usage(0, 0, decode_s=0.25)
PROMPT_TOKENS = len("user\np") + 3 + len("assistant\n") + 1


def texts(events: list[Json], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        for choice in event["choices"]
        if choice["index"] == index
    )


async def test_an_answer_has_every_field_that_openai_requires() -> None:
    """Keeps B33 out: docs/bugbank.md."""
    response = await chat(served(pieces=PIECES, engine=FakeEngine(CHAIN, usage=COSTS)))

    assert response.status_code == 200
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == "m"
    assert body["system_fingerprint"].startswith("fp_")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"content": "Hello world", "role": "assistant", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 3,
        "total_tokens": PROMPT_TOKENS + 3,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
        "kokuban": {
            "cached_pool_tokens": 0,
            "cached_ram_tokens": 0,
            "cached_disk_tokens": 0,
            "resumed_from": None,
            "queue_ms": 0.0,
            "prefill_ms": 0.0,
            "decode_ms": 250.0,
            "preemptions": 0,
            "recomputed_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


async def test_a_stream_begins_with_the_role_and_ends_with_an_empty_delta() -> None:
    """Keeps B85 out: docs/bugbank.md."""
    events = events_of(await chat(served(CHAIN, pieces=PIECES), stream=True))

    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
    for name in ("id", "created", "model", "system_fingerprint"):
        assert len({event[name] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


async def test_an_empty_answer_still_has_role_and_end() -> None:
    """Keeps B85 out: docs/bugbank.md."""
    events = events_of(await chat(served({P: EOT}), stream=True))

    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_usage_is_not_sent_unasked(options: Json | None) -> None:
    """Keeps B32 out: docs/bugbank.md."""
    events = events_of(
        await chat(served(CHAIN, pieces=PIECES), stream=True, stream_options=options)
    )

    assert all("usage" not in event for event in events)
    assert all(len(event["choices"]) == 1 for event in events)


async def test_usage_comes_once_at_the_end_when_asked_for() -> None:
    """Keeps B32 out: docs/bugbank.md."""
    model = served(pieces=PIECES, engine=FakeEngine(CHAIN, usage=COSTS))
    whole = (await chat(model)).json()

    events = events_of(await chat(model, stream=True, stream_options={"include_usage": True}))

    *others, last = events
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert [event["usage"] for event in others] == [None] * len(others)


async def test_usage_can_come_with_every_event() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    events = events_of(
        await chat(served(CHAIN, pieces=PIECES), stream=True, stream_options=options)
    )

    assert [e["usage"]["completion_tokens"] for e in events] == [1, 1, 2, 3, 3, 3]


async def test_usage_comes_with_no_event_where_it_is_not_included() -> None:
    """As vLLM has it: the one option is about the other."""
    options = {"continuous_usage_stats": True}

    events = events_of(
        await chat(served(CHAIN, pieces=PIECES), stream=True, stream_options=options)
    )

    assert all("usage" not in event for event in events)


async def test_options_of_a_stream_without_a_stream_are_refused() -> None:
    """Keeps B32 out: docs/bugbank.md."""
    response = await chat(served(CHAIN), stream_options={"include_usage": True})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


async def test_each_choice_has_its_own_text_and_end() -> None:
    """Keeps B30 out: docs/bugbank.md."""
    chain: dict[int, Any] = {P: [A, B], A: EOT, B: C, C: EOT}
    model = served(pieces=PIECES, engine=FakeEngine(chain, usage=COSTS))
    whole = (await chat(model, n=3, seed=1)).json()

    events = events_of(
        await chat(model, n=3, seed=1, stream=True, stream_options={"include_usage": True})
    )

    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    for choice in whole["choices"]:
        assert choice["message"]["content"] in ("Hello", " worldEND")
        assert texts(events, choice["index"]) == choice["message"]["content"]
        ends = [
            c["finish_reason"]
            for event in events
            for c in event["choices"]
            if c["index"] == choice["index"] and c["finish_reason"] is not None
        ]
        assert ends == ["stop"]
    lengths = {"Hello": 2, " worldEND": 3}
    total = sum(lengths[choice["message"]["content"]] for choice in whole["choices"])
    assert whole["usage"]["completion_tokens"] == total
    assert whole["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert events[-1]["usage"] == whole["usage"]


async def test_the_same_seed_gives_the_same_texts() -> None:
    """Keeps B29 out: docs/bugbank.md."""
    model = served({P: [A, B], A: EOT, B: EOT}, pieces=PIECES)

    first = (await chat(model, n=8, seed=7)).json()["choices"]
    second = (await chat(model, n=8, seed=7)).json()["choices"]
    alone = (await chat(model, n=1, seed=7)).json()["choices"]

    assert first == second
    assert {choice["message"]["content"] for choice in first} == {"Hello", " world"}
    assert alone == first[:1]


EMOJI = {P: 0xF0, 0xF0: 0x9F, 0x9F: 0x98, 0x98: 0x80, 0x80: EOT}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_hold_the_bytes_of_half_characters(stream: bool) -> None:
    """Keeps B14 out: docs/bugbank.md."""
    response = await chat(served(EMOJI), logprobs=True, top_logprobs=2, stream=stream)

    if stream:
        items = [
            item
            for event in events_of(response)
            if (logprobs := event["choices"][0]["logprobs"])
            for item in logprobs["content"]
        ]
    else:
        body = response.json()
        assert body["choices"][0]["message"]["content"] == "😀"
        items = body["choices"][0]["logprobs"]["content"]
        assert len(items) == body["usage"]["completion_tokens"]
    assert [item["bytes"] for item in items] == [[240], [159], [152], [128], list(b"<|eot|>")]
    assert items[0]["token"] == "\ufffd"
    assert items[0]["logprob"] == -0.5
    assert [top["bytes"] for top in items[0]["top_logprobs"]] == [[240], [241]]


@pytest.mark.parametrize(("asked", "length"), [(None, 0), (0, 0), (2, 2), (20, 20)])
async def test_as_many_alternatives_come_as_were_asked_for(asked: int | None, length: int) -> None:
    """Keeps B86 out: docs/bugbank.md."""
    response = await chat(served(CHAIN, pieces=PIECES), logprobs=True, top_logprobs=asked)

    items = response.json()["choices"][0]["logprobs"]["content"]
    assert [len(item["top_logprobs"]) for item in items] == [length] * 3


async def test_text_with_line_ends_stays_on_its_line() -> None:
    """Keeps B85 out: docs/bugbank.md."""
    chain = {P: A, A: B, B: ord('"'), ord('"'): EOT}
    model = served(chain, pieces=("a\nb\r", "\u2028\u0085\u2029"))

    events = events_of(await chat(model, stream=True))

    assert texts(events) == 'a\nb\r\u2028\u0085\u2029"'


async def test_nul_is_a_character_like_any_other() -> None:
    """Keeps B105 out: docs/bugbank.md."""
    model = served({P: 0, 0: EOT})

    response = await chat(model, "A\0B")

    assert b"\\u0000" in response.content
    assert response.json()["choices"][0]["message"]["content"] == "\0"
    [request] = model.client.submitted
    assert request.prompt_token_ids[6:9] == (65, 0, 66)
    assert response.json()["usage"]["prompt_tokens"] == len(request.prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 5, "max_completion_tokens": 3}, 3),
        ({"max_tokens": 2, "max_completion_tokens": 3}, 2),
        ({"max_tokens": 10**12}, 10**12),
    ],
)
async def test_the_smaller_limit_counts(fields: Json, limit: int | None) -> None:
    """Keeps B35 out: docs/bugbank.md."""
    model = served(CHAIN, pieces=PIECES)

    response = await chat(model, **fields)

    assert response.status_code == 200
    assert model.client.submitted[0].params.max_tokens == limit


async def test_every_sampling_field_reaches_the_engine() -> None:
    model = served(CHAIN, pieces=PIECES)
    fields: Json = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"97": -100, "98": 1.5},
        "seed": -1,
        "stop": "X",
        "stop_token_ids": [C],
        "min_tokens": 1,
        "max_tokens": 9,
        "ignore_eos": False,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": 3,
        "foo": {"unknown": "fields are ignored"},
    }

    response = await chat(model, **fields)

    assert response.status_code == 200, response.text
    [request] = model.client.submitted
    params = request.params
    assert params.logit_bias == {97: -100.0, 98: 1.5}
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 40, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1.0, -1.0)
    assert params.repetition_penalty == 1.1
    assert (params.stop, params.stop_token_ids) == (("X",), (C,))
    assert (params.min_tokens, params.max_tokens) == (1, 9)
    assert (params.include_stop, params.skip_special_tokens) == (True, False)
    assert (request.seed, request.priority) == (-1, 3)


async def test_cached_tokens_are_reported() -> None:
    model = served(pieces=PIECES, engine=FakeEngine(CHAIN, cached_tokens=5))

    usage = (await chat(model, n=2)).json()["usage"]

    assert usage["prompt_tokens_details"] == {"cached_tokens": 5, "cache_write_tokens": 0}


async def test_a_long_prompt_is_tokenised_off_the_loop_with_the_same_ids() -> None:
    """Keeps B89 out: docs/bugbank.md."""
    model = served(CHAIN, pieces=PIECES, engine=FakeEngine(CHAIN, max_context_tokens=10**6))
    content = "p" * 20_000

    response = await chat(model, content)

    assert response.json()["usage"]["prompt_tokens"] == PROMPT_TOKENS + 19_999


async def test_tokenize_counts_what_chat_counts() -> None:
    model = served(CHAIN, pieces=PIECES)
    messages = [{"role": "user", "content": "p"}]

    async with client(model) as http:
        tokens = (await http.post("/tokenize", json={"messages": messages})).json()
        back = (await http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()

    assert tokens["count"] == len(tokens["tokens"]) == PROMPT_TOKENS
    text = "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\n"
    assert back == {"prompt": text, "content": text}


async def test_tokenize_reads_a_text_and_shows_its_tokens() -> None:
    async with client(served()) as http:
        response = await http.post("/tokenize", json={"prompt": "a\0é", "return_token_strs": True})

    assert response.json() == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [97, 0, 0xC3, 0xA9],
        "token_strs": ["a", "\0", "\ufffd", "\ufffd"],
    }


async def test_the_served_model_is_listed_and_found_by_its_name() -> None:
    async with client(served()) as http:
        listed = (await http.get("/v1/models")).json()
        one = (await http.get("/v1/models/m")).json()
        other = await http.get("/v1/models/a/b")

    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["owned_by"]) == ("m", "model", "kokuban")
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "model_not_found"
