"""How one KV block lies on disk: a header, which proves itself and its payload, and the payload.

    0   magic, version               8 + 4 bytes
    12  group                        4, little-endian like all numbers
    16  bytes of payload             8
    24  key                          32
    56  check of the payload         32
    88  zero                         8
    96  check of all before it       32
    128 payload

Both checks are BLAKE2b with the installation's secret as key. So a write that was cut short, a bit
that flipped, a slot that holds another block by now and a file that somebody else made all look the
same: the block is not there. The check of the header binds key and payload together; it stands
alone so that an index can be rebuilt from headers without reading the payloads.
"""

import hashlib
import struct
from dataclasses import dataclass

from kokuban.kvcache.pool import BlockContent, BlockKey

Bytes = bytes | bytearray | memoryview
"""Whatever lays its bytes open."""

HEADER_BYTES = 128
KEY_BYTES = 32

_MAGIC = b"kokubaKV"
_VERSION = 1
_FIELDS = struct.Struct("<8sIIQ32s32s8x")
_ALIGNMENT = 4096
"""Slots begin at pages of the file system, so that no write touches a neighbour's."""


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """Makes and proves headers for payloads of one size."""

    payload_bytes: int
    secret: bytes

    def __post_init__(self) -> None:
        assert self.payload_bytes >= 1, f"a payload of {self.payload_bytes} bytes"
        assert 16 <= len(self.secret) <= 64, f"a secret of {len(self.secret)} bytes, not 16 to 64"

    @property
    def used_bytes(self) -> int:
        """Header and payload."""
        return HEADER_BYTES + self.payload_bytes

    @property
    def slot_bytes(self) -> int:
        """From one slot to the next."""
        return -(-self.used_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def secret_id(self) -> str:
        """Tells whether two stores have one secret, and nothing else about it."""
        return self._check(b"", b"kokuban.id").hex()

    def header(self, content: BlockContent, payload: Bytes) -> bytes:
        """The header to write before `payload`."""
        assert len(content.key) == KEY_BYTES, f"a key of {len(content.key)} bytes"
        check = self._check(payload, b"kokuban.payload")
        fields = _FIELDS.pack(
            _MAGIC, _VERSION, content.group, self.payload_bytes, content.key, check
        )
        return fields + self._check(fields, b"kokuban.header")

    def content_of(self, header: bytes) -> BlockContent | None:
        """What a slot holds by its header, which is proved; None for anything but a header."""
        fields, check = header[: _FIELDS.size], header[_FIELDS.size :]
        if not looks_used(header) or self._check(fields, b"kokuban.header") != check:
            return None
        _, version, group, payload_bytes, key, _ = _FIELDS.unpack(fields)
        if (version, payload_bytes) != (_VERSION, self.payload_bytes):
            return None
        return BlockContent(group, BlockKey(key))

    def proves(self, header: bytes, content: BlockContent, payload: Bytes) -> bool:
        """Whether header and payload are what was once written for `content`."""
        if self.content_of(header) != content:
            return False
        check = _FIELDS.unpack(header[: _FIELDS.size])[-1]
        return self._check(payload, b"kokuban.payload") == bytes(check)

    def _check(self, message: Bytes, purpose: bytes) -> bytes:
        return hashlib.blake2b(message, digest_size=32, key=self.secret, person=purpose).digest()


def looks_used(header: bytes) -> bool:
    """Whether these bytes begin like a header; anybody can ask, without the secret."""
    return len(header) == HEADER_BYTES and header.startswith(_MAGIC)
