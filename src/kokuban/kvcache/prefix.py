"""Names what a full KV block holds, so that another request can find it.

A key is a keyed BLAKE2b digest over the key of the block before it and the token ids of the block;
the root of the chain is a digest over all that decides the bytes besides the tokens, and over who
may see them. So two blocks
have one key only if everything up to the block's end is the same, and the key of a block is the
same in every process, tier and event that uses one installation's secret.

Each field is encoded with its type and its length, so that no two different inputs have one
encoding: [1, 2] and [3] are not [1] and [2, 3], and the number 1 is not the text "1". With 256 bits
and a secret key a collision is out of reach, found or made, so that hits need not compare tokens.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from kokuban.kvcache.contents import BlockKey

_DIGEST_BYTES = 32
_ROOT = b"kokuban.root"
_BLOCK = b"kokuban.block"
_PUBLIC = b"kokuban.public"
_JOIN = b"kokuban.join"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpace:
    """All that decides the bytes of a block besides adapter and tokens."""

    secret: bytes
    """16 to 64 bytes that belong to this installation: without them no key can be guessed."""

    model_digest: bytes
    """Of the model's weights."""

    numerics_id: str
    """Kernel version, variant, packing and compute dtype: other numerics write other bytes."""

    kv_dtype: str
    """Of K and V; may name the whole layout."""

    block_size: int

    public: tuple[tuple[int, ...], ...] = ()
    """Beginnings that the operator lets all tenants share: those of their blocks that lie wholly
    inside. The first block behind is its tenant's own again."""

    def __post_init__(self) -> None:
        assert 16 <= len(self.secret) <= 64, f"a secret of {len(self.secret)} bytes, not 16 to 64"

    def root(self, tenant: str = "", adapter: str = "", scope: str = "") -> BlockKey:
        """Parent of the first block of every sequence of this tenant with this adapter.

        Args:
            scope: parts the tenant's cache further: the client's salt.
        """
        return self._digest(
            self._facts(adapter) + _encode_text(tenant) + _encode_text(scope), _ROOT
        )

    def public_root(self, adapter: str = "") -> BlockKey:
        """Parent of the first block of what all tenants share."""
        return self._digest(self._facts(adapter), _PUBLIC)

    def join(self, root: BlockKey, public: BlockKey) -> BlockKey:
        """Parent of the first block of a tenant's own behind a shared one."""
        return self._digest(_encode_bytes(root) + _encode_bytes(public), _JOIN)

    def _facts(self, adapter: str) -> bytes:
        fields = (
            _encode_bytes(self.model_digest),
            _encode_text(self.numerics_id),
            _encode_text(self.kv_dtype),
            _encode_ints((self.block_size,)),
            _encode_text(adapter),
        )
        return b"".join(fields)

    def child(self, parent: BlockKey, token_ids: Sequence[int]) -> BlockKey:
        """Key of the full block with `token_ids` that follows the block named `parent`."""
        return self._digest(_encode_bytes(parent) + _encode_ints(token_ids), _BLOCK)

    def _digest(self, message: bytes, kind: bytes) -> BlockKey:
        digest = hashlib.blake2b(
            message, digest_size=_DIGEST_BYTES, key=self.secret, person=kind
        ).digest()
        return BlockKey(digest)


class KeyChain:
    """Keys of the full blocks of one growing sequence, each computed once, when first asked for."""

    def __init__(
        self, space: KeySpace, tenant: str = "", adapter: str = "", scope: str = ""
    ) -> None:
        self._space = space
        self._root = self._parent = space.root(tenant, adapter, scope)
        self._keys: list[BlockKey] = []
        self._public = space.public
        """Those beginnings that the sequence may still turn out to have."""

        self._num_public = 0
        """Leading blocks that are shared with all tenants."""

        if self._public:
            self._public_root = self._parent = space.public_root(adapter)

    @property
    def num_public(self) -> int:
        """Leading blocks, of those that have a key so far, that are shared with all tenants."""
        return self._num_public

    def key(self, token_ids: Sequence[int], index: int) -> BlockKey:
        """Key of full block `index` of the sequence.

        Args:
            token_ids: the sequence; tokens that an earlier call has seen must not have changed.
            index: logical block, from 0. Costs time for blocks not reached before only.
        """
        self._extend(token_ids, index + 1)
        return self._keys[index]

    def keys(self, token_ids: Sequence[int], count: int, *, first: int = 0) -> list[BlockKey]:
        """Keys of full blocks `first` up to `count`, as `key` gives them."""
        self._extend(token_ids, count)
        return self._keys[first:count]

    def known_keys(self, first: int) -> list[BlockKey]:
        """Keys of full blocks from `first` on, as far as they have been asked for."""
        return self._keys[first:]

    def parent(self, token_ids: Sequence[int], index: int) -> BlockKey:
        """What block `index`, which need not be full, is named after.

        The key of the block before it; the root for index 0.
        """
        count = min(index + 1, len(token_ids) // self._space.block_size)
        self._extend(token_ids, count)
        if self._num_public > index:
            return self._keys[index - 1] if index else self._public_root
        if index > self._num_public:
            return self._keys[index - 1]
        return self._space.join(self._root, self._keys[index - 1]) if index else self._root

    def tail_key(self, token_ids: Sequence[int], num_tokens: int) -> BlockKey:
        """Key of the last block of the first `num_tokens` tokens, which need not be full.

        No partly filled block has the key of a full one, or of one with more or fewer tokens.
        """
        index, filled = divmod(num_tokens, self._space.block_size)
        if filled == 0:
            return self.key(token_ids, index - 1)
        start = index * self._space.block_size
        return self._space.child(self.parent(token_ids, index), token_ids[start:num_tokens])

    def _extend(self, token_ids: Sequence[int], count: int) -> None:
        size = self._space.block_size
        assert count * size <= len(token_ids), "only a full block has a key"
        for block in range(len(self._keys), count):
            block_tokens = token_ids[block * size : (block + 1) * size]
            if self._public:
                self._leave_public(block, block_tokens)
            self._parent = self._space.child(self._parent, block_tokens)
            self._keys.append(self._parent)

    def _leave_public(self, block: int, block_tokens: Sequence[int]) -> None:
        """Find out whether a block is still shared with all; its parent is the tenant's if not."""
        size = self._space.block_size
        tokens = tuple(block_tokens)
        self._public = tuple(
            each for each in self._public if each[block * size : (block + 1) * size] == tokens
        )
        if self._public:
            self._num_public = block + 1
        else:
            self._parent = self._space.join(self._root, self._parent) if block else self._root


def _encode_bytes(value: bytes) -> bytes:
    return b"b" + len(value).to_bytes(8, "little") + value


def _encode_text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"s" + len(encoded).to_bytes(8, "little") + encoded


def _encode_ints(values: Sequence[int]) -> bytes:
    packed = array("q", values)
    # Little-endian whatever the machine: keys on disk outlive it.
    if array("H", [1]).tobytes() != b"\x01\x00":
        packed.byteswap()
    return b"i" + len(packed).to_bytes(8, "little") + packed.tobytes()
