"""The form of an entry in the table of all fields that the generating routes know."""

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kokuban.core.parameters import Range


class Api(enum.Flag):
    """The bodies that the table is about."""

    CHAT = enum.auto()
    COMPLETIONS = enum.auto()
    BOTH = CHAT | COMPLETIONS


class Fate(enum.StrEnum):
    """What becomes of a parameter."""

    SERVED = "served"
    IGNORED = "accepted, without effect"
    REFUSED = "refused"


REQUIRED = "required"
"""Stands for the default of a parameter that must be given."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def _powers(words: str) -> str:
    """Numbers of many digits as powers of two: all of ours are, or one less."""

    def short(found: re.Match[str]) -> str:
        number = int(found[0])
        bits = number.bit_length()
        return f"2^{bits - 1}" if number == 2 ** (bits - 1) else f"2^{bits} - 1"

    return re.sub(r"\d{9,}", short, words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One field of a body."""

    name: str
    kind: str
    """Its JSON types in words: `integer`, `string or array of strings`; `any` where refused."""

    meaning: str
    """What it does; of what is refused, the way out."""

    apis: Api = Api.BOTH
    origin: str = "OpenAI"
    """Whose name it is: the protocol or server that people know it from."""

    fate: Fate = Fate.SERVED
    default: Any = None
    """What its absence means, as JSON; None: nothing, or what `meaning` says."""

    limits: Range | None = None
    max_length: int | None = None
    """Most characters, items or keys."""

    min_length: int | None = None
    choices: tuple[str, ...] = ()
    """The only values of a text."""

    shape: Mapping[str, Any] = field(default_factory=dict)
    """Of its JSON schema: what is neither type nor limit and is checked where it is read."""

    neutral: tuple[Any, ...] = ()
    """Of what is refused: values that ask for nothing and are taken."""

    @property
    def json_types(self) -> frozenset[str]:
        """The names of its types in JSON Schema, without null, which always means absent."""
        return frozenset(each.split()[0] for each in self.kind.split(" or "))

    @property
    def limit_words(self) -> str:
        """Its limits for a reader; "" where it has none."""
        if self.limits is not None:
            return _powers(str(self.limits))
        if self.choices:
            return ", ".join(f"`{choice}`" for choice in self.choices)
        unit = {"string": "characters", "array": "items", "object": "keys"}
        if self.max_length is None:
            return ""
        [word] = [unit[kind] for kind in self.json_types if kind in unit][:1]
        least = f"{self.min_length} to" if self.min_length else "at most"
        return f"{least} {self.max_length:,} {word}"

    @property
    def default_words(self) -> str:
        if self.default is None:
            return ""
        return REQUIRED if self.default == REQUIRED else f"`{json.dumps(self.default)}`"

    def takes(self, value: object) -> bool:
        """Whether a value has one of its types. null has them all."""
        if value is None or self.kind == "any":
            return True
        if isinstance(value, bool):
            return "boolean" in self.json_types
        return any(isinstance(value, _TYPES[kind]) for kind in self.json_types)

    def asks_nothing(self, value: object) -> bool:
        """Whether a value of what is refused may be taken all the same."""
        return value is None or any(
            value == each and isinstance(value, bool) is isinstance(each, bool)
            for each in self.neutral
        )
