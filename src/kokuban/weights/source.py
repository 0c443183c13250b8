"""One face for a model's files, whatever their format: numbers, tensors, tokenizer, digest.

Tensor names are GGUF's for every format (`weights.names`). Tensors are views into memory maps:
nothing is read before it is used. Opening checks the files' structure; what the model needs is
checked by `check_tensors` once its Program is known.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig
from kokuban.weights.config_gguf import (
    OUTPUT_HEAD,
    ROPE_FREQS,
    ROPE_LONG,
    ROPE_SHORT,
    read_gguf_config,
)
from kokuban.weights.config_hf import read_hf_config
from kokuban.weights.fields import shown
from kokuban.weights.gguf import GgufFile
from kokuban.weights.gguf_split import is_later_part, open_gguf
from kokuban.weights.mapped import MappedFile, TensorInfo, TensorTable, WeightTensor
from kokuban.weights.names import canonical_name
from kokuban.weights.safetensors import read_json, read_safetensors
from kokuban.weights.tokenizer_source import (
    TokenizerSource,
    gguf_tokenizer_source,
    hf_tokenizer_source,
)

_READ_BY_CONFIG = {ROPE_FREQS, ROPE_LONG, ROPE_SHORT}
_MAX_LISTED = 8
_DIGEST_SAMPLES = 64
_DIGEST_SAMPLE_BYTES = 4096


class ModelSource(Protocol):
    """An opened model. Safe to read from several threads."""

    path: Path
    """The GGUF file or the directory."""

    format: Literal["gguf", "safetensors"]
    metadata: Mapping[str, Any]
    """GGUF's keys, or config.json, as they stand."""

    @property
    def config(self) -> ModelConfig:
        """The model's numbers.

        Raises:
            ModelError: the architecture is not supported, or a setting is missing or impossible.
        """
        ...

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids that end the model's turn, from every source that names one."""
        ...

    def names(self) -> tuple[str, ...]:
        """Canonical names of all tensors."""
        ...

    def infos(self) -> Iterable[TensorInfo]:
        """Type, shape and place of all tensors."""
        ...

    def tensor(self, name: str) -> WeightTensor:
        """A view of a tensor's bytes in the map.

        Raises:
            ModelError: there is no such tensor.
        """
        ...

    def release(self, name: str, num_bytes: int | None = None) -> None:
        """Let the system drop a tensor's pages from memory, or those of its first bytes.

        Reading it again stays possible.
        """
        ...

    def tokenizer_source(self) -> TokenizerSource:
        """What `text` builds the tokenizer and the chat template from.

        Raises:
            ModelError: it is missing or contradicts itself.
        """
        ...

    def digest(self, *, whole: bool = False) -> str:
        """32 hex digits that stand for this model's content: see `files_digest`."""
        ...


def open_source(path: Path) -> ModelSource:
    """Open a GGUF file or a Hugging Face style directory.

    Raises:
        ModelError: there is nothing at `path`, or it is malformed.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / "config.json").exists():
            return GgufSource(_the_gguf(path, ggufs))
        return HfSource(path)
    if path.exists():
        return GgufSource(path)
    raise ModelError(f"{path}: there is no such file or directory")


def _the_gguf(directory: Path, ggufs: Sequence[Path]) -> Path:
    """The one model in a directory without config.json: a single file, or the first part."""
    whole = [path for path in ggufs if not is_later_part(path)]
    if len(whole) != 1:
        listed = _listed([path.name for path in ggufs])
        raise ModelError(f"{directory}: holds several GGUF files, give one of them: {listed}")
    return whole[0]


class GgufSource:
    """A model in one GGUF file, or in several that were split."""

    format: Literal["gguf", "safetensors"] = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: Sequence[GgufFile] = open_gguf(path)
        self.metadata: Mapping[str, Any] = self._files[0].metadata
        infos = {name: info for file in self._files for name, info in file.tensors.items()}
        self._tensors = TensorTable(infos, path)
        self.names = self._tensors.names
        self.infos = self._tensors.infos
        self.tensor = self._tensors.tensor
        self.release = self._tensors.release

    @functools.cached_property
    def config(self) -> ModelConfig:
        return read_gguf_config(self.metadata, self._tensors, self.path)

    @functools.cached_property
    def _tokenizer(self) -> TokenizerSource:
        return gguf_tokenizer_source(self.metadata, self.path)

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._tokenizer.end_token_ids

    def tokenizer_source(self) -> TokenizerSource:
        return self._tokenizer

    def digest(self, *, whole: bool = False) -> str:
        return files_digest([(file.file, file.data_offset) for file in self._files], whole=whole)


class HfSource:
    """A directory with config.json, safetensors and tokenizer.json."""

    format: Literal["gguf", "safetensors"] = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config_path = path / "config.json"
        self.metadata: Mapping[str, Any] = read_json(self._config_path)
        self.config = read_hf_config(self.metadata, self._config_path)
        self._tensors = TensorTable(self._canonical(read_safetensors(path)), path)
        self.names = self._tensors.names
        self.infos = self._tensors.infos
        self.tensor = self._tensors.tensor
        self.release = self._tensors.release

    def _canonical(self, infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        named: dict[str, TensorInfo] = {}
        for name, info in infos.items():
            canonical = canonical_name(name, self.config.architecture)
            if canonical is None:
                continue
            if canonical in named:
                raise ModelError(f"{self.path}: {name!r} and another tensor both are {canonical!r}")
            named[canonical] = dataclasses.replace(info, name=canonical)
        return named

    @functools.cached_property
    def _tokenizer(self) -> TokenizerSource:
        return hf_tokenizer_source(self.path, self.metadata)

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._tokenizer.end_token_ids

    def tokenizer_source(self) -> TokenizerSource:
        return self._tokenizer

    def digest(self, *, whole: bool = False) -> str:
        files = {info.file.path: info.file for info in self._tensors.infos()}
        headers = [(file, 8 + int.from_bytes(file.buffer[:8], "little")) for file in files.values()]
        return files_digest(headers, self._config_path.read_bytes(), whole=whole)


def files_digest(
    files: Iterable[tuple[MappedFile, int]], extra: bytes = b"", *, whole: bool = False
) -> str:
    """A digest of everything, a second for each gigabyte, or one in milliseconds.

    The latter takes headers whole, sizes, and samples of the data. It tells apart models with
    another header, another size, or other weights at any of 64 evenly spaced places of 4 KiB in
    each file, as fine-tuned models have. It is no proof of integrity.

    Args:
        files: each with the length of its header in bytes.
        extra: other content that belongs to the model.
        whole: read all of the files.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"whole" if whole else b"samples")
    digest.update(len(extra).to_bytes(8, "little") + extra)
    for file, header_bytes in files:
        digest.update(file.num_bytes.to_bytes(8, "little") + header_bytes.to_bytes(8, "little"))
        digest.update(file.view(0, header_bytes).data)
        data_bytes = file.num_bytes - header_bytes
        if whole:
            digest.update(file.view(header_bytes, data_bytes).data)
            continue
        for sample in range(_DIGEST_SAMPLES):
            start = header_bytes + data_bytes * sample // _DIGEST_SAMPLES
            num_bytes = min(_DIGEST_SAMPLE_BYTES, file.num_bytes - start)
            digest.update(file.view(start, num_bytes).data)
    return digest.hexdigest()


def check_tensors(source: ModelSource, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the tensors that a model needs with those that its files have.

    An output head beside tied embeddings is ignored, as are tables that `config` already holds.

    Args:
        shapes: the row-major shape of each tensor that the Program reads.

    Raises:
        ModelError: naming the tensors that are missing, left over or of another shape.
    """
    present = {info.name: info.shape for info in source.infos()}
    ignored = set(_READ_BY_CONFIG)
    if source.config.tied_embeddings:
        ignored.add(OUTPUT_HEAD)
    missing = [name for name in shapes if name not in present]
    left_over = [name for name in present if name not in shapes and name not in ignored]
    wrong = [
        f"{name} (is {list(present[name])}, not {list(shape)})"
        for name, shape in shapes.items()
        if name in present and present[name] != shape
    ]
    problems = [
        f"{what}: {_listed(names)}"
        for what, names in (
            ("missing tensors", missing),
            ("tensors that the model does not use", left_over),
            ("tensors of another shape", wrong),
        )
        if names
    ]
    if problems:
        architecture = source.config.architecture
        raise ModelError(
            f"{source.path}: is no complete {architecture} model; {'; '.join(problems)}"
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_LISTED
    texts = (name if name.isprintable() else shown(name) for name in names[:_MAX_LISTED])
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")
