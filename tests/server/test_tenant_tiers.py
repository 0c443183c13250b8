"""What one tenant or salt has computed is nobody else's, in whatever tier it lies (bugbank B64)."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.child import Answer, Child, serving
from tools.make_tiny_models import write_tiny_model

BLOCK_BYTES = 16 * 768
POOL = ("--kv-memory", str(24 * BLOCK_BYTES))
KEYS = ("--api-key", "first", "--api-key", "second", "--admin-key", "others")
random_ = random.Random(3)


def text(length: int) -> list[int]:
    return [random_.randrange(300) for _ in range(length)]


PROMPT = text(49)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", form="gguf", dtype="q8_0")


def push_out(child: Child, num_prompts: int) -> None:
    for _ in range(num_prompts):
        child.complete(text(100), 1, key="others", cache_salt="others")


def who(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Two that must not share, as options of a request."""
    if kind == "keys":
        return {"key": "first"}, {"key": "second"}
    return {"key": "first", "cache_salt": "a"}, {"key": "first", "cache_salt": "b"}


@pytest.fixture(scope="module")
def tiered(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    cache = tmp_path_factory.mktemp("cache")
    with serving(model, cache, *POOL, *KEYS, "--kv-ram", "8MiB") as child:
        yield child
        child.stop()


@pytest.mark.parametrize("kind", ["keys", "salts"])
@pytest.mark.parametrize("tier", ["pool", "ram"])
def test_the_same_prompt_of_somebody_else_finds_nothing(
    tiered: Child, kind: str, tier: str
) -> None:
    one, other = who(kind)
    prompt = text(49)

    def ask(options: dict[str, str]) -> Answer:
        if tier == "ram":
            push_out(tiered, 6)
        return tiered.complete(prompt, **options)

    mine, theirs, mine_again, theirs_again = (ask(each) for each in (one, other, one, other))

    assert [answer.cached for answer in (mine, theirs)] == [0, 0]
    assert [answer.cached for answer in (mine_again, theirs_again)] == [48, 48]
    in_ram = [answer.from_ram for answer in (mine_again, theirs_again)]
    assert in_ram == ([48, 48] if tier == "ram" else [0, 0])
    assert {answer.proof for answer in (mine, theirs, mine_again, theirs_again)} == {mine.proof}


def test_a_salt_of_somebody_elses_key_opens_nothing(tiered: Child) -> None:
    prompt = text(49)
    tiered.complete(prompt, key="first", cache_salt="shared word")

    assert tiered.complete(prompt, key="second", cache_salt="shared word").cached == 0
    assert tiered.complete(prompt, key="first").cached == 0
    assert tiered.complete(prompt, key="first", cache_salt="shared word").cached == 48


@pytest.mark.parametrize("kind", ["keys", "salts"])
def test_what_lies_on_disk_is_its_owners_also_after_a_restart(
    model: Path, tmp_path: Path, kind: str
) -> None:
    one, other = who(kind)
    prompt = text(49)
    options = (*POOL, *KEYS, "--kv-disk", "16MiB")
    with serving(model, tmp_path, *options) as child:
        cold = child.complete(prompt, **one)
        push_out(child, 20)
        theirs = child.complete(prompt, **other)
        mine = child.complete(prompt, **one)
        child.stop()
    with serving(model, tmp_path, *options) as child:
        stranger = child.complete(prompt, key="others")
        restarted = child.complete(prompt, **one)
        child.stop()

    assert [answer.cached for answer in (cold, theirs, stranger)] == [0, 0, 0]
    assert (mine.from_disk, restarted.from_disk) == (48, 48)
    assert {answer.proof for answer in (cold, theirs, mine, stranger, restarted)} == {cold.proof}


def test_the_order_of_the_keys_does_not_hand_one_tenants_blocks_to_another(
    model: Path, tmp_path: Path
) -> None:
    """The operator adds a key in front, or takes one away: tenants are their keys, not places."""
    prompt = text(49)
    tiers = (*POOL, "--kv-disk", "16MiB")
    with serving(model, tmp_path, *tiers, "--api-key", "first", "--api-key", "second") as child:
        cold = child.complete(prompt, key="first")
        child.stop()
    with serving(model, tmp_path, *tiers, "--api-key", "second", "--api-key", "first") as child:
        second = child.complete(prompt, key="second")
        first = child.complete(prompt, key="first")
        child.stop()

    assert second.cached == 0, "the second tenant was given the first one's KV"
    assert first.from_disk == 48
    assert second.proof == first.proof == cold.proof


def events(child: Child, pool_blocks: int, ram_blocks: int) -> Iterator[dict[str, Any]]:
    """What was stored in pool and host memory, until so many blocks have come to both."""
    wanted = {"pool": pool_blocks, "ram": ram_blocks}
    headers = {"authorization": "Bearer others"}
    with httpx.stream("GET", f"{child.url}/v1/kv_events", headers=headers, timeout=30) as response:
        lines = response.iter_lines()
        kind = ""
        for line in lines:
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            if name == "data" and kind == "open":
                for key in ("first", "second"):
                    child.complete(PROMPT, key=key)
            if name == "data" and kind == "stored":
                event = json.loads(value)
                wanted[event["tier"]] -= 1
                yield event
                if not any(wanted.values()):
                    return


def test_two_tenants_share_no_key_and_no_block(model: Path, tmp_path: Path) -> None:
    """49 + 5 tokens: three whole blocks for each, and below the pool the fourth one too."""
    with serving(model, tmp_path, *POOL, *KEYS, "--kv-ram", "8MiB") as child:
        found = list(events(child, 6, 8))
        child.stop()

    for tier, count in (("pool", 6), ("ram", 8)):
        stored = [event for event in found if event["tier"] == tier]
        assert len({event["key"] for event in stored}) == count
    blocks = [event["block_ids"][0] for event in found if event["tier"] == "pool"]
    assert len(set(blocks)) == 6
    # Nobody may read the others' text.
    assert not any("token_ids" in event for event in found)
