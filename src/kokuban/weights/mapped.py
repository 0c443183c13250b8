"""Read-only memory maps, and tensors as views into them.

Nothing is read before it is touched, and `release` gives touched pages back to the system: they
are clean pages of a file, so the kernel can drop them and read them again.
"""

import itertools
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kokuban.core.errors import ModelError
from kokuban.weights.quant_types import TensorType


class MappedFile:
    """A whole file, mapped read-only. The map lives as long as a view into it does.

    Raises:
        ModelError: the file is missing, unreadable or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path}: the file is empty") from None
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
        self.num_bytes = len(self.buffer)
        self._bytes = np.frombuffer(self.buffer, np.uint8)

    def view(self, offset: int, num_bytes: int) -> NDArray[np.uint8]:
        """[num_bytes] uint8 of the file, not copied."""
        assert 0 <= offset <= offset + num_bytes <= self.num_bytes
        return self._bytes[offset : offset + num_bytes]

    def release(self, offset: int, num_bytes: int) -> None:
        """Let the system drop these pages from memory; a later read brings them back."""
        if num_bytes:
            start = offset - offset % mmap.PAGESIZE
            self.buffer.madvise(mmap.MADV_DONTNEED, start, offset + num_bytes - start)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. Made by the readers, after every check."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """Row-major: the last dimension is contiguous. A matrix is [n, k]: n outputs, k inputs."""

    offset: int
    """Bytes from the start of its file."""

    num_bytes: int
    file: MappedFile


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """A tensor's raw bytes, in the format that `type` names."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """Row-major: the last dimension is contiguous. A matrix is [n, k]: n outputs, k inputs."""

    data: NDArray[np.uint8]
    """[bytes] uint8, rows end to end; a view into the mapped file unless it was converted."""

    @property
    def num_elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class TensorTable:
    """Tensors of one or several files under their canonical names."""

    def __init__(self, infos: Mapping[str, TensorInfo], origin: Path) -> None:
        self._infos = dict(infos)
        self._origin = origin

    def names(self) -> tuple[str, ...]:
        """All canonical names, in the order of the files."""
        return tuple(self._infos)

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        """Where a tensor lies.

        Raises:
            ModelError: there is no such tensor.
        """
        info = self._infos.get(name)
        if info is None:
            raise ModelError(f"{self._origin}: the tensor {name!r} is missing")
        return info

    def infos(self) -> Iterable[TensorInfo]:
        return self._infos.values()

    def tensor(self, name: str) -> WeightTensor:
        """A view of the tensor's bytes in the map.

        Raises:
            ModelError: there is no such tensor.
        """
        info = self.info(name)
        data = info.file.view(info.offset, info.num_bytes)
        return WeightTensor(name, info.type, info.shape, data)

    def release(self, name: str, num_bytes: int | None = None) -> None:
        """Let the system drop a tensor's pages, or those of its first `num_bytes` bytes.

        Reading it again stays possible.
        """
        info = self.info(name)
        info.file.release(info.offset, info.num_bytes if num_bytes is None else num_bytes)


def overlap(infos: Iterable[TensorInfo]) -> tuple[TensorInfo, TensorInfo] | None:
    """Two tensors of one file that share bytes, if there are any."""
    ordered = sorted(infos, key=lambda info: info.offset)
    for first, second in itertools.pairwise(ordered):
        if first.offset + first.num_bytes > second.offset:
            return first, second
    return None
