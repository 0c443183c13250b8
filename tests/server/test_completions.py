"""/v1/completions: prompts of every kind, echo, the four logprob lists, lengths."""

from typing import Any

import pytest
from tests.fakes_text import BOS, EOT, FIRST_PIECE
from tests.server.asgi import Json, client, complete, events_of
from tests.server.fakes import FakeEngine, served

A, B = FIRST_PIECE, FIRST_PIECE + 1
PIECES = ("Hello", " world")
P = ord("p")
CHAIN = {P: A, A: B, B: EOT}


async def test_an_answer_has_every_field_that_openai_requires() -> None:
    body = (await complete(served(CHAIN, pieces=PIECES))).json()

    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Hello world",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == 1
    assert body["usage"]["completion_tokens"] == 3


async def test_sixteen_tokens_are_the_default() -> None:
    body = (await complete(served())).json()

    assert body["choices"][0]["text"] == "p" * 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompt", "texts", "prompt_tokens"),
    [
        ("xp", ["Hello world"], 2),
        (["p", "q"], ["Hello world", "qqq"], 2),
        ([120, P], ["Hello world"], 2),
        ([[P], [113, 113]], ["Hello world", "qqq"], 3),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_text_or_ids_one_or_several(
    prompt: Any, texts: list[str], prompt_tokens: int, stream: bool
) -> None:
    fields: Json = {"max_tokens": 3, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}

    response = await complete(served(CHAIN, pieces=PIECES), prompt, **fields)

    if stream:
        *events, last = events_of(response)
        got = [""] * len(texts)
        for event in events:
            [choice] = event["choices"]
            got[choice["index"]] += choice["text"]
        assert got == texts
        assert last["usage"]["prompt_tokens"] == prompt_tokens
    else:
        body = response.json()
        assert [choice["text"] for choice in body["choices"]] == texts
        assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))
        assert body["usage"]["prompt_tokens"] == prompt_tokens


async def test_choices_are_numbered_prompt_by_prompt() -> None:
    body = (await complete(served(), ["p", "q"], n=2, max_tokens=1)).json()

    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "p"),
        (1, "p"),
        (2, "q"),
        (3, "q"),
    ]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
async def test_exactly_as_many_tokens_come_as_were_asked_for(max_tokens: int) -> None:
    """Keeps B34 out: docs/bugbank.md."""
    body = (await complete(served(), max_tokens=max_tokens)).json()

    assert body["choices"][0]["text"] == "p" * max_tokens
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == max_tokens


async def test_echo_without_new_tokens_needs_no_engine() -> None:
    """Keeps B35 out: docs/bugbank.md."""
    model = served()

    body = (await complete(model, "ab", echo=True, max_tokens=0)).json()

    assert body["choices"][0]["text"] == "ab"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] == 2
    assert model.client.submitted == []


async def test_echo_with_logprobs_scores_the_prompt() -> None:
    body = (await complete(served(), "abc", echo=True, max_tokens=0, logprobs=1)).json()

    assert body["choices"][0]["text"] == "abc"
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a", "b", "c"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"b": -0.5}, {"c": -0.5}],
        "text_offset": [0, 1, 2],
    }
    assert body["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_comes_before_the_new_text_once(stream: bool) -> None:
    model = served(CHAIN, pieces=PIECES)

    response = await complete(model, "xp", echo=True, logprobs=0, stream=stream)

    if stream:
        choices = [event["choices"][0] for event in events_of(response)]
        text = "".join(choice["text"] for choice in choices)
        lists = [choice["logprobs"] for choice in choices]
        merged = {name: [x for one in lists for x in one[name]] for name in lists[0]}
        assert choices[0]["text"] == "xpHello"
    else:
        [choice] = response.json()["choices"]
        text, merged = choice["text"], choice["logprobs"]
    assert text == "xpHello world"
    assert merged == {
        "tokens": ["x", "p", "Hello", " world", "<|eot|>"],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"p": -0.5},
            {"Hello": -0.5},
            {" world": -0.5},
            {"<|eot|>": -0.5},
        ],
        "text_offset": [0, 1, 2, 7, 13],
    }


async def test_the_chosen_token_is_always_listed() -> None:
    """Keeps B86 out: docs/bugbank.md."""
    body = (await complete(served(CHAIN, pieces=PIECES), logprobs=2, max_tokens=1)).json()

    [top] = body["choices"][0]["logprobs"]["top_logprobs"]
    assert top == {"Hello": -0.5, " world": -1.5}


async def test_half_a_character_is_named_by_its_bytes() -> None:
    """Keeps B14 out: docs/bugbank.md."""
    chain = {P: 0xF0, 0xF0: 0x9F, 0x9F: 0x98, 0x98: 0x80, 0x80: ord("a"), ord("a"): EOT}

    body = (await complete(served(chain), logprobs=0)).json()

    assert body["choices"][0]["text"] == "😀a"
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"][:2] == ["bytes:\\xf0", "bytes:\\x9f"]
    assert logprobs["text_offset"] == [0, 0, 0, 0, 1, 2]


async def test_a_model_with_a_first_token_can_go_on_from_nothing() -> None:
    """Keeps B36 out: docs/bugbank.md."""
    body = (await complete(served({BOS: EOT}, add_bos=True), "")).json()

    assert body["usage"]["prompt_tokens"] == 1


async def test_a_first_token_that_is_written_out_is_not_doubled() -> None:
    """Keeps B16 out: docs/bugbank.md."""
    model = served({}, add_bos=True)

    await complete(model, "<|bos|>hi")
    await complete(model, "hi")

    assert [r.prompt_token_ids for r in model.client.submitted] == [(256, 104, 105)] * 2


LIMIT = 64


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "status", "new_tokens"),
    [(63, 1, 200, 1), (64, 1, 400, 0), (65, 1, 400, 0), (10, 60, 200, 54), (10, 10**6, 200, 54)],
)
async def test_the_context_ends_where_it_is_said_to(
    prompt_tokens: int, max_tokens: int, status: int, new_tokens: int
) -> None:
    """Keeps B39 out: docs/bugbank.md."""
    model = served(engine=FakeEngine(max_context_tokens=LIMIT))

    response = await complete(model, [P] * prompt_tokens, max_tokens=max_tokens)

    assert response.status_code == status
    if status == 200:
        assert response.json()["usage"]["completion_tokens"] == new_tokens
    else:
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(LIMIT) in error["message"]
    assert model.client.stats().running == 0


async def test_one_prompt_that_can_never_run_ends_all_of_its_request() -> None:
    model = served(engine=FakeEngine(max_context_tokens=LIMIT))

    response = await complete(model, [[P], [P] * LIMIT], max_tokens=None)

    assert response.status_code == 400
    assert model.client.stats().running == 0


async def test_too_many_prompts_are_refused_before_any_runs() -> None:
    model = served()

    response = await complete(model, ["p"] * 2000)

    assert response.status_code == 400
    assert "the limit of one request is 1024" in response.json()["error"]["message"]
    assert model.client.submitted == []


async def test_ids_of_padding_rows_are_taken() -> None:
    """Keeps B26 out: docs/bugbank.md."""
    async with client(served({511: EOT})) as http:
        response = await http.post("/v1/completions", json={"model": "m", "prompt": [511]})

    assert response.status_code == 200


def branching() -> FakeEngine:
    """Says "aa…" or "bb…" or "c" and the end; "c" has the best sum of logprobs, "b" the mean."""
    a, b, c = map(ord, "abc")
    logprobs = {a: -1.5, b: -0.9, c: -1.0, EOT: -1.0}
    return FakeEngine({P: [a, b, c], ord("q"): [c, b], c: EOT}, logprobs=logprobs)


async def test_best_of_returns_the_choices_of_the_highest_mean_logprob_best_first() -> None:
    fields: Json = {"max_tokens": 4, "seed": 3}
    every = (await complete(served(engine=branching()), n=20, **fields)).json()
    texts = sorted(
        (choice["text"] for choice in every["choices"]), key=lambda text: "bca".index(text[0])
    )
    num_best = texts.count("bbbb") + 1

    best = (await complete(served(engine=branching()), n=num_best, best_of=20, **fields)).json()

    assert {text[0] for text in texts} == set("abc")
    assert [choice["text"] for choice in best["choices"]] == texts[:num_best]
    assert texts[num_best - 1] == "c"
    assert [choice["index"] for choice in best["choices"]] == list(range(num_best))
    assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]
    assert best["choices"][0]["logprobs"] is None


async def test_best_of_ranks_each_prompt_on_its_own_and_keeps_the_logprobs() -> None:
    model = served(engine=branching())

    body = (await complete(model, ["q", "p"], best_of=20, max_tokens=2, seed=3, logprobs=0)).json()

    assert [(each["index"], each["text"]) for each in body["choices"]] == [(0, "bb"), (1, "bb")]
    assert body["choices"][1]["logprobs"]["token_logprobs"] == [-0.9, -0.9]
    assert len(model.client.submitted) == 40
    assert len({request.choice for request in model.client.submitted}) == 20
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 80


async def test_best_of_that_equals_n_ranks_nothing() -> None:
    response = await complete(served(engine=branching()), n=3, best_of=3, seed=3)
    plain = await complete(served(engine=branching()), n=3, seed=3)

    assert response.json()["choices"] == plain.json()["choices"]
