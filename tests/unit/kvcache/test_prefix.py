import subprocess
import sys
from dataclasses import replace

import pytest

from kokuban.kvcache.pool import BlockKey
from kokuban.kvcache.prefix import KeyChain, KeySpace


def make_space(
    secret: bytes = b"0123456789abcdef",
    model_digest: bytes = b"model",
    numerics_id: str = "v1-avx512",
    kv_dtype: str = "bf16",
    block_size: int = 4,
) -> KeySpace:
    return KeySpace(
        secret=secret,
        model_digest=model_digest,
        numerics_id=numerics_id,
        kv_dtype=kv_dtype,
        block_size=block_size,
    )


def chain_keys(
    tokens: list[int], space: KeySpace | None = None, tenant: str = ""
) -> list[BlockKey]:
    chain = KeyChain(space or make_space(), tenant)
    return [chain.key(tokens, index) for index in range(len(tokens) // 4)]


@pytest.mark.parametrize(
    "other",
    [
        make_space(secret=b"another secret of mine"),
        make_space(model_digest=b"other"),
        make_space(numerics_id="v1-avx2"),
        make_space(kv_dtype="fp16"),
        make_space(block_size=8),
    ],
)
def test_whatever_changes_the_bytes_of_a_block_changes_its_key(other: KeySpace) -> None:
    same = make_space()

    assert same.root() == make_space().root()
    assert other.root() != same.root()
    # The secret is in every digest, so that a known parent helps nobody.
    parent = same.root()
    assert (other.child(parent, [1]) != same.child(parent, [1])) == (other.secret != same.secret)


def test_tenant_adapter_and_scope_change_every_key_and_are_not_confused() -> None:
    space = make_space()
    roots = {
        space.root(),
        space.root(tenant="a"),
        space.root(adapter="a"),
        space.root(tenant="a", adapter="b"),
        space.root(tenant="b", adapter="a"),
        space.root(tenant="ab"),
        space.root(scope="a"),
        space.root(tenant="a", scope="b"),
    }

    assert len(roots) == 8


def test_fields_that_lie_side_by_side_cannot_trade_a_letter() -> None:
    left = make_space(numerics_id="v1b", kv_dtype="f16")
    right = make_space(numerics_id="v1", kv_dtype="bf16")

    assert left.root() != right.root()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([7 + 31, 9 - 1], [7, 9]),  # equal under a rolling hash with factor 31
        ([1, 2, 3], [3, 2, 1]),
        ([1, 2], [1, 2, 0]),
        ([], [0]),
        ([258], [2, 1]),
    ],
)
def test_different_tokens_have_different_keys(left: list[int], right: list[int]) -> None:
    """Keeps B62 out: docs/bugbank.md."""
    space = make_space()
    root = space.root()

    assert space.child(root, left) != space.child(root, right)


def test_the_border_between_two_blocks_is_part_of_the_key() -> None:
    """Keeps B62 out: docs/bugbank.md."""
    space = make_space()
    root = space.root()

    one = space.child(space.child(root, [1, 2]), [3])
    other = space.child(space.child(root, [1]), [2, 3])

    assert one != other


def test_a_text_is_no_token() -> None:
    """Keeps B62 out: docs/bugbank.md."""
    space = make_space()

    with pytest.raises(TypeError):
        space.child(space.root(), ["1"])  # type: ignore[list-item]


def test_the_same_block_under_another_parent_has_another_key() -> None:
    """Keeps B62 out: docs/bugbank.md."""
    one = chain_keys([1, 2, 3, 4, 9, 9, 9, 9])
    other = chain_keys([1, 2, 3, 5, 9, 9, 9, 9])

    assert one[1] != other[1]


def test_sequences_share_the_keys_of_their_common_blocks_only() -> None:
    one = chain_keys(list(range(12)))
    other = chain_keys([*range(8), 99, 9, 10, 11])

    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert chain_keys(list(range(12)), tenant="a")[0] != one[0]


def test_a_chain_grows_with_its_sequence() -> None:
    chain = KeyChain(make_space())
    tokens = list(range(8))

    first = chain.key(tokens, 1)
    tokens += range(8, 12)
    third = chain.key(tokens, 2)

    assert [chain.key(tokens, 0), first, third] == chain_keys(list(range(12)))


def test_a_block_that_is_not_full_has_no_key() -> None:
    with pytest.raises(AssertionError, match="only a full block has a key"):
        KeyChain(make_space()).key([1, 2, 3, 4, 5, 6, 7], 1)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(AssertionError, match="a secret of 3 bytes, not 16 to 64"):
        make_space(secret=b"abc")


def test_keys_are_the_same_in_every_process() -> None:
    """B63: Stored blocks are found after a restart: these digests must never change by accident."""
    key = chain_keys(list(range(64)))[-1]
    program = (
        "from kokuban.kvcache.prefix import KeyChain, KeySpace\n"
        "space = KeySpace(secret=b'0123456789abcdef', model_digest=b'model',\n"
        "                 numerics_id='v1-avx512', kv_dtype='bf16', block_size=4)\n"
        "print(KeyChain(space).key(list(range(64)), 15).hex())\n"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert keys == {key.hex()}
    assert key.hex() == "bdf56741076956400b8497f4b8b28b3979da8aa9da837e67fd73a8a4e4e35a14"


PUBLIC = tuple(range(100, 140))


def public_chain(tenant: str) -> KeyChain:
    return KeyChain(replace(make_space(block_size=16), public=(PUBLIC,)), tenant)


def test_tenants_share_the_blocks_of_what_the_operator_made_public_and_no_others() -> None:
    text = [*PUBLIC, *range(500, 540)]
    one, two = (public_chain(tenant).keys(text, 5) for tenant in ("one", "two"))

    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])


def test_a_block_of_ones_own_is_never_named_after_a_public_one() -> None:
    """A text that leaves the public one in its second block, full or not."""
    own = [*PUBLIC[:16], *range(500, 530)]
    chains = [public_chain(tenant) for tenant in ("one", "two")]
    first = public_chain("one").key(PUBLIC, 0)

    assert [chain.key(own, 0) for chain in chains] == [first, first]
    parents = {chain.parent(own, 1) for chain in chains}
    assert len(parents) == 2
    assert first not in parents
    tails = {chain.tail_key(own[:20], 20) for chain in chains}
    assert len(tails) == 2
    assert chains[0].parent(own, 2) == chains[0].key(own, 1)


def test_a_public_block_is_named_after_public_ones_only() -> None:
    chain = public_chain("one")

    assert chain.parent(PUBLIC, 0) == public_chain("two").parent(PUBLIC, 0)
    assert chain.parent(PUBLIC, 1) == chain.key(PUBLIC, 0)
    assert chain.parent(PUBLIC, 0) != public_chain("one").parent(range(20), 0)


def test_without_a_public_text_keys_are_those_of_the_tenant() -> None:
    text = list(range(64))

    assert public_chain("one").keys(text, 4) == KeyChain(make_space(block_size=16), "one").keys(
        text, 4
    )
