"""Builds GGUF bytes field by field, so that a test can write one of them wrong."""

import struct
from dataclasses import dataclass, field


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def key(name: str, type_id: int, payload: bytes) -> bytes:
    return string(name) + struct.pack("<I", type_id) + payload


def uint32(name: str, value: int) -> bytes:
    return key(name, 4, struct.pack("<I", value))


def array(name: str, type_id: int, count: int, payload: bytes) -> bytes:
    return key(name, 9, struct.pack("<IQ", type_id, count) + payload)


def strings(name: str, texts: list[str]) -> bytes:
    return array(name, 8, len(texts), b"".join(string(text) for text in texts))


def tensor(name: str, dims: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    packed = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + packed + struct.pack("<IQ", type_id, offset)


@dataclass
class RawGguf:
    """A good file of two tensors of 32 float32; every field can be replaced."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[bytes] = field(
        default_factory=lambda: [key("general.architecture", 8, string("llama"))]
    )
    tensors: list[bytes] = field(
        default_factory=lambda: [tensor("a", (8, 4)), tensor("b", (32,), offset=128)]
    )
    num_keys: int | None = None
    num_tensors: int | None = None
    data_bytes: int = 256

    def build(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        header = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        header += b"".join(self.keys) + b"".join(self.tensors)
        header += bytes(-len(header) % 32)
        return header + bytes(index % 251 for index in range(self.data_bytes))
