"""How a tensor's numbers are stored: the types that Kokuban reads, and their sizes."""

import enum


class TensorType(enum.IntEnum):
    """A storage type under its number in GGUF. Each row is a whole number of blocks.

    Source: `enum ggml_type` and the block structs in ggml's `ggml.h` and `ggml-common.h`.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30

    @property
    def block_elements(self) -> int:
        """Consecutive elements of a row that share scales: 1, 32 or 256."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, scales included."""
        return _BLOCKS[self][1]

    @property
    def bits_per_weight(self) -> float:
        """Average over a block, scales included."""
        return 8 * self.block_bytes / self.block_elements

    @property
    def quantized(self) -> bool:
        """Whether the elements are codes under a scale, not numbers by themselves."""
        return self.block_elements > 1

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of `num_elements` elements, a multiple of `block_elements`."""
        assert num_elements % self.block_elements == 0, f"{num_elements} is no whole {self.name}"
        return num_elements // self.block_elements * self.block_bytes


_BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 2 + 16),
    TensorType.Q4_1: (32, 4 + 16),
    TensorType.Q5_0: (32, 2 + 4 + 16),
    TensorType.Q5_1: (32, 4 + 4 + 16),
    TensorType.Q8_0: (32, 2 + 32),
    TensorType.Q2_K: (256, 16 + 64 + 4),
    TensorType.Q3_K: (256, 32 + 64 + 12 + 2),
    TensorType.Q4_K: (256, 4 + 12 + 128),
    TensorType.Q5_K: (256, 4 + 12 + 32 + 128),
    TensorType.Q6_K: (256, 128 + 64 + 16 + 2),
}

_FOREIGN_NAMES = {
    4: "Q4_2 (removed)",
    5: "Q4_3 (removed)",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def type_name(type_id: int) -> str:
    """What to call a GGUF type in a message, also one that Kokuban does not read."""
    if type_id in TensorType.__members__.values():
        return TensorType(type_id).name
    return _FOREIGN_NAMES.get(type_id, "unknown")


def supported_types() -> str:
    """The names of all types that can be read, for messages."""
    return ", ".join(member.name for member in TensorType)
