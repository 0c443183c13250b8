"""POST /v1/responses and the paths around it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Json, client
from tests.server.fakes import FakeEngine, Served, served
from tests.server.responses.speaking import ask, prompt_of, refused, stream

A, B, C = range(FIRST_PIECE, FIRST_PIECE + 3)
CHAIN: Mapping[int, int | Sequence[int]] = {10: A, A: B, B: EOT}
PIECES = ("Hello", " world", "!!")


def model_of(chain: Mapping[int, int | Sequence[int]] = CHAIN, **options: Any) -> Served:
    return served(pieces=PIECES, engine=FakeEngine(chain, **options))


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


OPEN = "<|im_start|>assistant\n"


async def test_a_response_repeats_what_was_asked_with_the_defaults_filled_in() -> None:
    async with client(model_of(cached_tokens=4)) as http:
        answer = await ask(http, instructions="be short", metadata={"a": "b"})

    response_id = answer["id"]
    assert response_id.startswith("resp_")
    number = response_id.removeprefix("resp_")
    assert answer["usage"].pop("kokuban")["cached_pool_tokens"] == 4
    assert isinstance(answer.pop("created_at"), int)
    assert isinstance(answer.pop("completed_at"), int)
    assert answer == {
        "id": response_id,
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": "be short",
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "m",
        "output": [
            {
                "type": "message",
                "id": f"msg_{number}0000",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {
                        "type": "output_text",
                        "text": "Hello world",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 38,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 41,
        },
        "metadata": {"a": "b"},
    }


async def test_the_events_of_a_stream_come_in_the_order_of_openais() -> None:
    async with client(model_of()) as http:
        events = await stream(http)

    assert [(event["type"], event.get("delta")) for event in events] == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", None),
        ("response.content_part.added", None),
        ("response.output_text.delta", "Hello"),
        ("response.output_text.delta", " world"),
        ("response.output_text.done", None),
        ("response.content_part.done", None),
        ("response.output_item.done", None),
        ("response.completed", None),
    ]
    assert events[0]["sequence_number"] == 0
    assert events[0]["response"]["status"] == "in_progress"
    assert "usage" not in events[0]["response"]
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert events[-1]["response"]["usage"]["output_tokens"] == 3


async def test_a_streamed_response_is_kept_like_a_whole_one() -> None:
    async with client(model_of()) as http:
        events = await stream(http)
        found = await http.get(f"/v1/responses/{events[0]['response']['id']}")

    assert found.json() == events[-1]["response"]


async def test_the_limit_makes_a_response_incomplete() -> None:
    async with client(model_of()) as http:
        answer = await ask(http, max_output_tokens=1)
        events = await stream(http, max_output_tokens=1)

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["completed_at"] is None
    assert events[-1]["type"] == "response.incomplete"


async def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    async with client(model_of({10: A, A: -1})) as http:
        events = await stream(http)
        kept = await http.get(f"/v1/responses/{events[0]['response']['id']}")

    response = events[-1]["response"]
    assert events[-1]["type"] == "response.failed"
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "no number"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert kept.status_code == 404


async def test_a_failure_before_anything_was_sent_is_an_error() -> None:
    model = model_of()
    model.client.die()
    async with client(model) as http:
        error = await refused(http, 500)

    assert error["code"] == "engine_error"


async def test_logprobs_are_sent_where_include_asks_for_them() -> None:
    async with client(model_of()) as http:
        included = ["message.output_text.logprobs"]
        answer = await ask(http, include=included, top_logprobs=2)
        events = await stream(http, include=included)

    logprobs = answer["output"][0]["content"][0]["logprobs"]
    assert [each["token"] for each in logprobs] == ["Hello", " world"]
    assert [len(each["top_logprobs"]) for each in logprobs] == [2, 2]
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    assert [delta["logprobs"][0]["token"] for delta in deltas] == ["Hello", " world"]


async def test_the_next_turn_begins_with_the_tokens_of_this_one() -> None:
    """The prompt of turn 2 repeats the prompt and the output of turn 1, so that its KV is found."""
    model = model_of()
    async with client(model) as http:
        first = await ask(http, instructions="be short")
        second = await ask(
            http, instructions="be short", input="more", previous_response_id=first["id"]
        )
        third = await ask(http, input="q", previous_response_id=second["id"], stop="!")

    said = turn("user", "p") + turn("assistant", "Hello world") + turn("user", "more")
    assert prompt_of(model, 0) == turn("system", "be short") + turn("user", "p") + OPEN
    assert prompt_of(model, 1) == turn("system", "be short") + said + OPEN
    assert prompt_of(model, 2) == said + turn("assistant", "Hello world") + turn("user", "q") + OPEN
    assert third["instructions"] is None
    one, two = (request.prompt_token_ids for request in model.client.submitted[:2])
    assert two[: len(one) + 2] == (*one, A, B)


async def test_several_turns_may_go_on_from_the_same_response() -> None:
    model = model_of()
    async with client(model) as http:
        first = await ask(http)
        for word in ("one", "two"):
            await ask(http, input=word, previous_response_id=first["id"])

    head = turn("user", "p") + turn("assistant", "Hello world")
    assert prompt_of(model, 1) == head + turn("user", "one") + OPEN
    assert prompt_of(model, 2) == head + turn("user", "two") + OPEN


async def test_deleting_a_response_does_not_break_what_went_on_from_it() -> None:
    model = model_of()
    async with client(model) as http:
        first = await ask(http)
        second = await ask(http, input="more", previous_response_id=first["id"])
        await http.delete(f"/v1/responses/{first['id']}")
        await ask(http, input="q", previous_response_id=second["id"])
        gone = await refused(http, previous_response_id=first["id"])

    assert prompt_of(model).startswith(turn("user", "p") + turn("assistant", "Hello world"))
    assert gone["code"] == "previous_response_not_found"


async def test_an_unknown_previous_response_is_named() -> None:
    async with client(model_of()) as http:
        error = await refused(http, previous_response_id="resp_1")

    assert error == {
        "message": "Previous response with id 'resp_1' not found. It was not stored, or it is kept "
        "no longer; send the whole conversation as input.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


async def test_what_is_not_to_be_stored_is_not_found() -> None:
    async with client(model_of()) as http:
        answer = await ask(http, store=False)
        found = await http.get(f"/v1/responses/{answer['id']}")
        items = await http.get(f"/v1/responses/{answer['id']}/input_items")

    assert answer["store"] is False
    assert found.status_code == items.status_code == 404
    assert found.json()["error"]["message"].startswith(f"Response with id '{answer['id']}' not f")


async def test_another_tenants_response_is_unknown() -> None:
    async with client(model_of(), api_keys=("a", "b")) as http:
        ours, theirs = ({"authorization": f"Bearer {key}"} for key in "ab")
        body = {"input": "p"}
        answer = (await http.post("/v1/responses", json=body, headers=ours)).json()
        path = f"/v1/responses/{answer['id']}"
        item = {"type": "item_reference", "id": answer["output"][0]["id"]}
        statuses = [
            (await http.get(path, headers=theirs)).status_code,
            (await http.get(f"{path}/input_items", headers=theirs)).status_code,
            (await http.post(f"{path}/cancel", headers=theirs)).status_code,
            (await http.delete(path, headers=theirs)).status_code,
        ]
        more = {"input": "p", "previous_response_id": answer["id"]}
        goes_on = await http.post("/v1/responses", json=more, headers=theirs)
        refers = await http.post("/v1/responses", json={"input": [item]}, headers=theirs)
        found = await http.get(path, headers=ours)

    assert statuses == [404, 404, 404, 404]
    assert goes_on.json()["error"]["code"] == "previous_response_not_found"
    assert refers.json()["error"]["code"] == "item_not_found"
    assert found.json() == answer


async def test_a_reference_stands_for_the_item_that_was_answered() -> None:
    model = model_of()
    async with client(model) as http:
        first = await ask(http)
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        answer = await ask(http, input=[{"role": "user", "content": "q"}, reference])
        short = await ask(http, input=[{"id": first["output"][0]["id"]}])
        items = (await http.get(f"/v1/responses/{answer['id']}/input_items")).json()["data"]
        error = await refused(http, 404, input=[{"type": "item_reference", "id": "msg_1"}])

    assert prompt_of(model, 1) == turn("user", "q") + turn("assistant", "Hello world") + OPEN
    assert short["status"] == "completed"
    assert items[0] == first["output"][0]
    assert error["message"].startswith("Item with id 'msg_1' not found.")


async def test_what_is_referred_to_is_no_more_than_a_body_may_be() -> None:
    model = model_of()
    async with client(model, max_body_bytes=2000) as http:
        first = await ask(http)
        reference = {"id": first["output"][0]["id"]}
        error = await refused(http, 413, input=[reference] * 20, truncation="auto")
        few = await ask(http, input=[reference] * 5)

    assert "more than 2000 bytes" in error["message"]
    assert few["status"] == "completed"
    assert len(model.client.submitted) == 2


async def test_input_items_come_in_pages() -> None:
    async with client(model_of()) as http:
        texts = [{"role": "user", "content": str(number)} for number in range(5)]
        path = f"/v1/responses/{(await ask(http, input=texts))['id']}/input_items"
        ids = [item["id"] for item in (await http.get(f"{path}?order=asc")).json()["data"]]
        first = (await http.get(f"{path}?limit=2")).json()
        second = (await http.get(f"{path}?limit=2&after={first['last_id']}")).json()
        third = (await http.get(f"{path}?limit=2&after={second['last_id']}")).json()
        end = (await http.get(f"{path}?after={third['last_id']}")).json()

    pages = [[item["id"] for item in page["data"]] for page in (first, second, third)]
    assert pages == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]
    assert (first["first_id"], first["last_id"]) == (ids[4], ids[3])
    assert end == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=²", "limit"),
        ("order=up", "order"),
        ("after=msg_1", "after"),
    ],
)
async def test_a_page_that_cannot_be_is_refused(query: str, param: str) -> None:
    async with client(model_of()) as http:
        answer = await ask(http)
        response = await http.get(f"/v1/responses/{answer['id']}/input_items?{query}")

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_tools_that_may_not_be_called_are_not_counted() -> None:
    model = model_of()
    tool = {"type": "function", "name": "f", "description": "d" * 50}
    fields: Json = {"input": "p", "tools": [tool], "tool_choice": "none"}
    async with client(model) as http:
        counted = (await http.post("/v1/responses/input_tokens", json=fields)).json()
        await ask(http, **fields)

    assert counted["input_tokens"] == len(model.client.submitted[0].prompt_token_ids) == 20


async def test_structured_outputs_are_taken_as_in_a_chat() -> None:
    model = model_of()
    async with client(model) as http:
        await ask(http, structured_outputs={"choice": ["a", "b"]}, max_output_tokens=1)

    assert model.client.submitted[0].params.grammar is not None


async def test_the_tokens_of_an_input_are_those_that_the_engine_gets() -> None:
    model = model_of()
    body = {"instructions": "i", "input": [{"role": "user", "content": "p"}]}
    async with client(model) as http:
        counted = (await http.post("/v1/responses/input_tokens", json=body)).json()
        await ask(http, **body)

    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": len(model.client.submitted[0].prompt_token_ids),
    }


async def test_fields_that_agents_send_are_accepted() -> None:
    """As Codex, the Agents SDK and the AI SDK have them."""
    fields: Json = {
        "model": "m",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "client_metadata": {"x": "y"},
        "tool_choice": "auto",
        "tools": [],
        "parallel_tool_calls": False,
        "stream_options": {"include_obfuscation": False},
        "text": {"verbosity": "low"},
        "truncation": None,
    }
    async with client(model_of()) as http:
        answer = await ask(http, **fields)

    assert answer["status"] == "completed"
    assert answer["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "low"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"conversation": "c"}, "conversation", "use previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "no prompt templates"),
        ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        ({"messages": []}, "messages", "use input"),
        ({"guided_regex": "a"}, "guided_regex", "use text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"temperature": 3}, "temperature", "temperature=3"),
        ({"top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"metadata": {"a": 1}}, "metadata.a", "valid string"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "at most 16"),
        ({"background": True, "store": False}, "background", "when `store` is true"),
        ({"input": None}, "input", "input is missing"),
        ({"input": []}, "input", "input is empty"),
        ({"input": {"role": "user"}}, "input", "must be a text or a list of items"),
        ({"input": [1]}, "input[0]", "is no object"),
        ({"input": [{"role": "user"}]}, "input[0].content", "required"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'assistant'"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "'web_search_call'"),
        ({"input": [{"type": 5}]}, "input[0].type", "'5'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'input_image'; this model reads text only",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
            "is missing",
        ),
        (
            {
                "input": [
                    {
                        "type": "function_call_output",
                        "call_id": "c",
                        "output": [{"type": "input_file"}],
                    }
                ]
            },
            "input[0].output[0].type",
            "'input_file'",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tools": [{}]}, "tools[0].type", "required"),
        ({"tool_choice": "required"}, "tool_choice", "offers no function"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "offers no function"),
        ({"prompt_cache_key": ""}, "prompt_cache_key", "at least 1"),
        ({"logit_bias": {"9999": 1}}, "logit_bias", "9999"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(
    fields: Json, param: str, words: str
) -> None:
    async with client(model_of()) as http:
        error = await refused(http, **fields)

    assert error["param"] == param
    assert words in error["message"]


async def test_a_prompt_that_is_too_long_names_the_input() -> None:
    async with client(model_of(max_context_tokens=64)) as http:
        error = await refused(http, input="x" * 100)

    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


async def test_an_unknown_model_is_404() -> None:
    async with client(model_of()) as http:
        error = await refused(http, 404, model="other")

    assert error["code"] == "model_not_found"


async def test_numbers_beyond_64_bits_come_back_as_they_were() -> None:
    huge = 10**30
    tool = {"type": "function", "name": "f", "parameters": {"maximum": huge}}
    async with client(model_of()) as http:
        answer = await ask(
            http, tools=[tool], input=[{"role": "user", "content": "p", "extra": huge}]
        )
        items = (await http.get(f"/v1/responses/{answer['id']}/input_items")).json()

    assert answer["tools"][0]["parameters"] == {"maximum": huge}
    assert items["data"][0]["extra"] == huge


async def test_fields_that_an_item_does_not_have_are_left_alone() -> None:
    """They are kept, and listed again; what they hold is nobody's business."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "content": [5]}
    async with client(model_of()) as http:
        answer = await ask(http, input=[call])
        items = (await http.get(f"/v1/responses/{answer['id']}/input_items")).json()["data"]

    assert items[0]["content"] == [5]


async def test_only_a_response_in_the_background_can_be_cancelled_or_resumed() -> None:
    async with client(model_of()) as http:
        answer = await ask(http)
        cancelled = await http.post(f"/v1/responses/{answer['id']}/cancel")
        resumed = await http.get(f"/v1/responses/{answer['id']}?stream=true")

    assert cancelled.status_code == resumed.status_code == 400
    assert "Cannot cancel a synchronous response" in cancelled.json()["error"]["message"]
    assert resumed.json()["error"]["param"] == "stream"


async def test_a_server_that_keeps_nothing_says_so() -> None:
    async with client(model_of(), response_store_bytes=0) as http:
        answer = await ask(http)
        found = await http.get(f"/v1/responses/{answer['id']}")
        error = await refused(http, background=True)

    assert answer["store"] is False
    assert found.status_code == 404
    assert "--response-store" in error["message"]


async def test_truncation_leaves_out_the_oldest_turns_and_keeps_the_head() -> None:
    model = model_of(max_context_tokens=200)
    turns: list[Json] = []
    for number in range(8):
        turns += [
            {"role": "user", "content": f"q{number}" + "x" * 20},
            {"role": "assistant", "content": "a"},
        ]
    ask_last = {"role": "user", "content": "last"}
    async with client(model) as http:
        answer = await ask(
            http, instructions="i", input=[*turns, ask_last], truncation="auto", max_output_tokens=9
        )
        error = await refused(http, instructions="i", input=[*turns, ask_last])
        alone = await refused(http, input="x" * 300, truncation="auto")

    assert answer["truncation"] == "auto"
    kept = "".join(
        turn("user", f"q{number}" + "x" * 20) + turn("assistant", "a") for number in (5, 6, 7)
    )
    assert prompt_of(model, 0) == turn("system", "i") + kept + turn("user", "last") + OPEN
    assert error["code"] == alone["code"] == "context_length_exceeded"


LEFT_OUT: list[Json] = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "new\nline"}]


async def test_tools_that_are_not_served_are_left_out_and_named() -> None:
    body = {"input": "p", "tools": [{"type": "function", "name": "f"}, *LEFT_OUT], "extra": 1}
    async with client(model_of()) as http:
        response = await http.post("/v1/responses", json=body)
        quiet = await http.post("/v1/responses", json={"input": "p"})

    told = "tools of these types are not served: ?, local_shell, web_search"
    assert response.headers["x-kokuban-warning"] == f"unknown fields: extra; {told}"
    assert [tool["name"] for tool in response.json()["tools"]] == ["f"]
    assert "x-kokuban-warning" not in quiet.headers


async def test_a_strict_server_refuses_what_it_does_not_serve() -> None:
    async with client(model_of(), strict=True) as http:
        unknown = await refused(http, extra=1)
        tool = await refused(http, tools=LEFT_OUT[:1])
        answer = await ask(http, reasoning={"effort": "none"}, text={"verbosity": "low"})

    assert (unknown["param"], unknown["code"]) == ("extra", "unknown_field")
    assert (tool["param"], tool["code"]) == ("tools", "unsupported_tool")
    assert answer["status"] == "completed"


async def test_the_effort_reaches_the_template() -> None:
    template = "{{ reasoning_effort }} {{ enable_thinking }}"
    model = served(pieces=PIECES, engine=FakeEngine({ord("e"): EOT}), template=template)
    async with client(model) as http:
        await ask(http, reasoning={"effort": "none"})

    assert prompt_of(model) == "none False"
