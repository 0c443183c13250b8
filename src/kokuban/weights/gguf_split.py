"""Opens a GGUF model that was split into several files, `name-00001-of-00003.gguf` and so on."""

import re
from collections.abc import Sequence
from pathlib import Path

from kokuban.core.errors import ModelError
from kokuban.weights.gguf import GgufFile

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MAX_PARTS = 512


def is_later_part(path: Path) -> bool:
    """Whether the name is that of a part which is not the first."""
    match = _PART.fullmatch(path.name)
    return match is not None and int(match[2]) > 1


def open_gguf(path: Path) -> Sequence[GgufFile]:
    """All files of a model, the one with the metadata first.

    Args:
        path: the only file, or the first part.

    Raises:
        ModelError: a part is missing, malformed, or repeats a tensor.
    """
    first = GgufFile(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= _MAX_PARTS:
        raise ModelError(f"{path}: split.count is {count!r}, not a number up to {_MAX_PARTS}")
    if count <= 1:
        return [first]
    match = _PART.fullmatch(path.name)
    if match is None or int(match[2]) != 1 or int(match[3]) != count:
        raise ModelError(
            f"{path}: is one of {count} parts; give the first, "
            f"whose name ends in -00001-of-{count:05}.gguf"
        )
    parts = [
        path.with_name(f"{match[1]}-{part:05}-of-{count:05}.gguf") for part in range(2, count + 1)
    ]
    files = [first]
    seen = set(first.tensors)
    for part in parts:
        file = GgufFile(part)
        if twice := seen & set(file.tensors):
            raise ModelError(f"{part}: the tensor {min(twice)!r} is also in another part")
        seen |= set(file.tensors)
        files.append(file)
    expected = first.metadata.get("split.tensors.count", len(seen))
    if expected != len(seen):
        raise ModelError(f"{path}: the {count} parts hold {len(seen)} tensors, not {expected!r}")
    return files
