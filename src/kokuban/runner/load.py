"""From a model's tensors to what the native program reads: matrices, vectors, embedding rows.

Matrices are packed one after another and their pages of the file given back at once, so that the
memory at the peak is the packed weights and some megabytes of one tensor. Embedding rows stay in
the mapped file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kokuban.core.config import Quantize
from kokuban.core.model_config import ModelConfig
from kokuban.kernels.linear import PackedMatrix, pack_matrix
from kokuban.program.program import Program, WeightSpec
from kokuban.weights.dequant import dequantize_tensor
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.source import ModelSource, check_tensors

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """Rows of the embedding as they lie in the file."""

    data: NDArray[np.uint8]
    """[vocabulary * row_bytes]."""

    type_id: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """Everything that the operations of a Program read, by weight name."""

    embedding: EmbeddingTable
    matrices: Mapping[str, PackedMatrix]
    vectors: Mapping[str, NDArray[np.float32]]
    """Norm weights and biases."""

    file_bytes: int
    """Of the matrices, as they lie in the file."""

    packed_bytes: int
    bytes_by_name: Mapping[str, int]
    """Of each weight, as it is read in every step."""


def load_weights(
    source: ModelSource,
    program: Program,
    config: ModelConfig,
    *,
    pool: Any,
    quantize: Quantize = "none",
    progress: Progress | None = None,
) -> LoadedWeights:
    """Check that the file has what the Program needs, then pack it.

    Args:
        pool: the native threads that pack.
        quantize: "int8" or "int4" turn 16- and 32-bit matrices into Q8_0 or Q4_1.

    Raises:
        ModelError: tensors are missing, left over, of a wrong shape, or cannot be packed.
    """
    check_tensors(source, {name: spec.shape for name, spec in program.weights.items()})
    total = sum(
        source.tensor(name).data.nbytes for name, spec in program.weights.items() if spec.matmul
    )
    matrices: dict[str, PackedMatrix] = {}
    vectors: dict[str, NDArray[np.float32]] = {}
    done = 0
    for name, spec in program.weights.items():
        if not spec.matmul:
            if not spec.embedding:
                vectors[name] = _vector(source.tensor(name), config)
            continue
        tensor = source.tensor(name)
        matrices[name] = _packed(source, tensor, spec, pool, quantize)
        done += tensor.data.nbytes
        source.release(name)
        if progress is not None:
            progress(done, total)
    return LoadedWeights(
        embedding=_embedding(source, program),
        matrices=matrices,
        vectors=vectors,
        file_bytes=total,
        packed_bytes=sum(matrix.num_bytes for matrix in matrices.values()),
        bytes_by_name={
            name: matrices[name].num_bytes if name in matrices else source.tensor(name).data.nbytes
            for name in program.weights
        },
    )


def _packed(
    source: ModelSource, tensor: WeightTensor, spec: WeightSpec, pool: Any, quantize: Quantize
) -> PackedMatrix:
    release: Callable[[int], None] | None = partial(source.release, tensor.name)
    if quantize != "none" and not tensor.type.quantized:
        from kokuban.weights.quantize import LOAD_TYPES, quantize_tensor

        tensor, release = quantize_tensor(tensor, LOAD_TYPES[quantize]), None
    n, k = spec.shape
    return pack_matrix(
        tensor.data, tensor.type.name, n, k, name=tensor.name, pool=pool, consumed=release
    )


def _vector(tensor: WeightTensor, config: ModelConfig) -> NDArray[np.float32]:
    values = dequantize_tensor(tensor).reshape(-1).astype(np.float32)
    if tensor.name.endswith("norm.weight"):
        values = values + np.float32(config.norm_weight_offset)
    return np.ascontiguousarray(values)


def _embedding(source: ModelSource, program: Program) -> EmbeddingTable:
    [name] = [name for name, spec in program.weights.items() if spec.embedding]
    tensor = source.tensor(name)
    return EmbeddingTable(tensor.data, int(tensor.type), tensor.type.num_bytes(tensor.shape[1]))
