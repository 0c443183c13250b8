"""The whole of it: `kokuban serve` in a process of its own, a real model, the openai SDK."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from tools.make_tiny_models import write_tiny_model

from kokuban.core.env import for_child

ROOT = Path(__file__).resolve().parents[2]
KEY = "none"
HEADERS = {"authorization": f"Bearer {KEY}"}
MESSAGES = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A served tiny model with a KV pool of 24 blocks; ends in good order at the end."""
    path = write_tiny_model(tmp_path_factory.mktemp("served"), "llama", form="gguf", dtype="q4_1")
    env = for_child(PYTHONPATH=str(ROOT / "src"))
    child = subprocess.Popen(
        [sys.executable, "-m", "kokuban", "serve", str(path), "--port", "0", "--kv-memory",
         str(24 * 16 * 768), "--token-budget", "64", "--max-running-requests", "16",
         "--served-model-name", "tiny", "--threads", "2", "--admin-key", KEY],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        lines = iter(child.stdout.readline, "")
        found = next(match for line in lines if (match := re.search(r"ready at (http\S+)", line)))
        yield found[1]
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key=KEY) as client:
        yield client


def ask(client: OpenAI, **options: object) -> object:
    fixed = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 5}
    return client.chat.completions.create(**{**fixed, **options})  # type: ignore[call-overload]


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_a_stream_gives_what_the_whole_answer_gives(client: OpenAI) -> None:
    whole = ask(client, extra_body={"ignore_eos": True})
    events = list(
        ask(
            client,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )

    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert events[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole.choices[0].finish_reason == "length"


def test_choices_differ_and_come_again_with_the_seed(client: OpenAI) -> None:
    options = {"n": 3, "temperature": 1.0, "extra_body": {"ignore_eos": True}}
    first, second = (ask(client, **options) for _ in range(2))

    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in second.choices]
    assert first.usage.completion_tokens == 36


def test_logprobs_of_the_chosen_token_are_among_the_best_when_greedy(client: OpenAI) -> None:
    answer = ask(client, temperature=0, logprobs=True, top_logprobs=3)

    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert entry.logprob <= 0


def test_a_stop_string_ends_the_text_before_itself(client: OpenAI) -> None:
    whole = client.completions.create(
        model="tiny", prompt="abc", max_tokens=30, temperature=0, extra_body={"ignore_eos": True}
    )
    text = whole.choices[0].text
    stop = text[8:11]
    cut = client.completions.create(
        model="tiny", prompt="abc", max_tokens=30, temperature=0, stop=stop,
        extra_body={"ignore_eos": True},
    )  # fmt: skip

    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.usage.completion_tokens < whole.usage.completion_tokens


def test_echo_scores_the_prompt(client: OpenAI) -> None:
    """As evaluation tools ask: token ids in, no new token, a logprob for each but the first."""
    answer = client.completions.create(
        model="tiny", prompt=list(range(60, 160)), max_tokens=0, echo=True, logprobs=1
    )

    logprobs = answer.choices[0].logprobs.token_logprobs
    assert len(logprobs) == 100
    assert logprobs[0] is None
    assert all(value < 0 for value in logprobs[1:])
    assert answer.usage.completion_tokens == 0


async def test_more_streams_than_the_pool_holds_all_end_as_alone(url: str) -> None:
    """Keeps B57 out: docs/bugbank.md."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as client:

        async def text(i: int) -> str:
            stream = await client.completions.create(
                model="tiny", prompt=f"number {i} " * (1 + i % 5), max_tokens=40 + 3 * (i % 24),
                temperature=i % 2, seed=i, stream=True, extra_body={"ignore_eos": True},
            )  # fmt: skip
            return "".join([event.choices[0].text async for event in stream])

        alone = [await text(i) for i in range(64)]
        together = await asyncio.gather(*(text(i) for i in range(64)))

    assert together == alone
    stats = httpx.get(f"{url}/stats", headers=HEADERS).json()
    assert stats["free_blocks"] == stats["num_blocks"] == 24
    assert stats["preemptions"] > 0


def test_a_client_that_goes_away_frees_its_blocks(url: str) -> None:
    with httpx.stream(
        "POST",
        f"{url}/v1/completions",
        headers=HEADERS,
        json={
            "model": "tiny",
            "prompt": "x",
            "max_tokens": 300,
            "stream": True,
            "ignore_eos": True,
        },
    ) as response:
        for _ in response.iter_lines():
            break

    for _ in range(1000):
        if (stats := httpx.get(f"{url}/stats", headers=HEADERS).json())["running"] == 0:
            break
    assert stats["running"] == 0
    assert stats["free_blocks"] == 24


def test_a_prompt_comes_from_the_cache_of_its_own_salt_only(client: OpenAI, url: str) -> None:
    def usage(salt: str | None) -> tuple[str, int, int]:
        answer = client.completions.create(
            model="tiny", prompt="once upon a time there was a salt", max_tokens=8, temperature=0,
            extra_body={"ignore_eos": True, "cache_salt": salt},
        )  # fmt: skip
        details = answer.usage.prompt_tokens_details
        return answer.choices[0].text, answer.usage.prompt_tokens, details.cached_tokens

    def hits() -> float:
        text = httpx.get(f"{url}/metrics", headers=HEADERS).text
        return float(re.search(r"^kokuban:prefix_cache_hits_total\{.*\} (\S+)$", text, re.M)[1])

    before = hits()
    found = [usage(salt) for salt in ("one", "two", "one", None)]
    assert httpx.post(f"{url}/reset_prefix_cache", headers=HEADERS).json()["forgotten_blocks"] > 0
    found += [usage("one")]

    text, prompt_tokens, _ = found[0]
    assert [each[0] for each in found] == [text] * 5
    assert [each[2] for each in found] == [0, 0, prompt_tokens - 1, 0, 0]
    assert hits() - before == prompt_tokens - 1


def test_the_next_turn_of_a_response_finds_the_whole_prompt_of_this_one(client: OpenAI) -> None:
    first = client.responses.create(model="tiny", input="what comes next", max_output_tokens=4)
    second = client.responses.create(
        model="tiny", input="and then", previous_response_id=first.id, max_output_tokens=4
    )

    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_an_answer_is_explained_by_its_id(client: OpenAI, url: str) -> None:
    """Found to the token where the text differs; found whole; and not at all after a reset."""

    def told(prompt: str) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = client.completions.create(
            model="tiny", prompt=prompt, max_tokens=4, temperature=0,
            extra_body={"ignore_eos": True, "cache_salt": "explained"},
        )  # fmt: skip
        found = httpx.get(f"{url}/v1/explain/{answer.id}", headers=HEADERS).json()
        assert found["usage"] == answer.usage.to_dict()
        return found["prompt"], found["usage"]

    def ids(text: str) -> list[int]:
        return httpx.post(f"{url}/tokenize", headers=HEADERS, json={"prompt": text}).json()[
            "tokens"
        ]

    rome, oslo = "the weather in Rome is fine today", "the weather in Oslo is cold today"
    common = next(i for i, (a, b) in enumerate(zip(ids(rome), ids(oslo), strict=False)) if a != b)
    cold, _ = told(rome)
    changed, usage = told(oslo)
    again, _ = told(oslo)
    assert httpx.post(f"{url}/reset_prefix_cache", headers=HEADERS).status_code == 200
    after_reset, _ = told(oslo)

    assert (cold["reason"], cold["cached_tokens"], cold["nearest"]) == ("no_prefix", 0, None)
    assert (changed["reason"], changed["cached_tokens"]) == ("text_changed", common)
    difference = changed["nearest"]["difference"]
    assert (difference["index"], changed["nearest"]["common_tokens"]) == (common, common)
    assert difference["here"]["token_id"] == ids(oslo)[common]
    assert difference["there"]["token_id"] == ids(rome)[common]
    assert usage["kokuban"]["cached_pool_tokens"] == common
    assert usage["kokuban"]["resumed_from"] == "pool"
    assert usage["kokuban"]["prefill_ms"] > 0
    assert usage["kokuban"]["decode_ms"] > 0
    assert (again["reason"], again["cached_tokens"]) == ("hit", len(ids(oslo)) - 1)
    assert (after_reset["reason"], after_reset["cached_tokens"]) == ("reset", 0)


def test_a_session_pauses_and_its_next_request_ends_the_pause(client: OpenAI, url: str) -> None:
    session = f"{url}/v1/sessions/agent%201"

    def usage() -> dict[str, Any]:
        answer = client.completions.create(
            model="tiny", prompt="a session of an agent", max_tokens=4, temperature=0,
            extra_body={"ignore_eos": True}, extra_headers={"X-Session-ID": "agent 1"},
        )  # fmt: skip
        found: dict[str, Any] = answer.usage.to_dict()
        return found

    assert httpx.get(session, headers=HEADERS).status_code == 404
    first = usage()
    before = httpx.get(session, headers=HEADERS).json()
    paused = httpx.post(f"{session}/pause", headers=HEADERS, json={"expected_ms": 30_000}).json()
    second = usage()
    after = httpx.get(session, headers=HEADERS).json()
    deleted = httpx.delete(session, headers=HEADERS)

    # The last token was never fed back, so that it has no KV.
    assert before["num_tokens"] == first["total_tokens"] - 1
    assert (before["id"], before["active"], before["paused"]) == ("agent 1", False, False)
    prices = paused["prices"]
    assert prices["move_ms"] is None
    stays = prices["stay_ms"] <= prices["recompute_ms"]
    assert (paused["paused"], paused["expected_ms"]) == (True, 30_000)
    assert paused["place"] == ("pool" if stays else "dropped")
    assert first["kokuban"]["resumed_from"] is None
    assert second["kokuban"]["resumed_from"] == "pool"  # Nobody needed its blocks.
    assert second["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1
    assert after["paused"] is False
    assert deleted.json()["deleted"] is True
    assert httpx.get(session, headers=HEADERS).status_code == 404


def test_a_marked_message_outlives_a_crowd_that_an_unmarked_one_does_not(
    client: OpenAI, url: str
) -> None:
    """The pool has 24 blocks; the crowd of others needs more than twice as many."""
    words = "be brief, be kind, be right"

    def cached(salt: str, words: str, mark: dict[str, str] | None) -> tuple[int, int]:
        messages = [
            {"role": "system", "content": words, **({"cache_control": mark} if mark else {})},
            {"role": "user", "content": f"{salt}?"},
        ]
        usage = ask(
            client, messages=messages, max_tokens=1, extra_body={"cache_salt": salt}
        ).usage  # fmt: skip
        return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens

    found = {}
    for salt, mark in (("marked", {"type": "ephemeral"}), ("plain", None)):
        cached(salt, words, mark)
        for number in range(12):
            cached(f"{salt} {number}", "somebody else's system prompt here", None)
        found[salt] = cached(salt, words, None)

    body = {"messages": [{"role": "system", "content": words}], "add_generation_prompt": False}
    marked_tokens = httpx.post(f"{url}/tokenize", headers=HEADERS, json=body).json()["count"]
    prompt_tokens, from_pin = found["marked"]
    assert found["plain"][1] == 0
    assert marked_tokens <= from_pin < prompt_tokens
