"""Typed reading of settings that a stranger wrote; an error names file, key and value."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kokuban.core.errors import ModelError

MAX_SIZE = 1 << 30
"""Above any size, count or length in a model's configuration."""

_MAX_SHOWN = 60


def shown(value: object) -> str:
    """A value from a file as it may stand in a message: on one line, not too long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


class Fields:
    """A mapping from a model file, with a prefix that all its keys share.

    Args:
        values: as parsed.
        path: the file, for messages.
        prefix: put before each key, such as "llama.".
    """

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.path = path

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path}: {message}")

    def get(self, key: str) -> Any:
        """The value, or None where it is absent or null."""
        return self._values.get(self._prefix + key)

    def wrong(self, key: str, wanted: str) -> ModelError:
        return self.fail(f"{self._prefix}{key} is {shown(self.get(key))}, not {wanted}")

    def missing(self, key: str) -> ModelError:
        return self.fail(f"the setting {self._prefix}{key} is missing")

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"a whole number from 1 to {most}")
        return value

    def optional_size(self, key: str) -> int | None:
        """As `size`; None where it is absent, null or 0."""
        return self.size(key) if self.get(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        if not _is_positive(value):
            raise self.wrong(key, "a finite number above 0")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """As `number`; None where it is absent, null or 0."""
        return self.number(key) if self.get(key) else None

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers above 0; empty where it is absent."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(_is_positive(element) for element in value):
            raise self.wrong(key, "a list of finite numbers above 0")
        return tuple(float(element) for element in value)

    def uniform_size(self, key: str, default: int | None = None) -> int:
        """A size that GGUF may also give once for each layer; all must be equal."""
        value = self.get(key)
        if isinstance(value, str) or not hasattr(value, "__len__"):
            return self.size(key, default)
        distinct = set(value)
        if len(distinct) != 1:
            raise self.wrong(key, "the same in every layer, which is all that is supported")
        return Fields({key: distinct.pop()}, self.path).size(key)


def _is_positive(value: object) -> bool:
    """Whether it is a number above 0 that a float can hold; JSON has larger ones."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= sys.float_info.max
