"""What `bench kernels` knows of a kernel: what it does, whether it is right, what bounds it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kokuban.core.config import KV_DTYPES

Arithmetic = Literal["fma", "int8"]
"""Probes of `kernels.peak`: float32 multiply-adds; bytes by bytes in sums as narrow as can be, an
upper bound for every format."""

COLD_BYTES = 96 << 20
"""Weights or KV that calls take turns in, as a model's layers do: more than caches hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What kernels run with."""

    pool: Any
    """Native threads, for kernels that are told of them."""

    threads: int
    isa_cap: int
    quick: bool
    """Smaller and fewer: a look whether all is right, not a measurement."""

    @property
    def cold_bytes(self) -> int:
        return COLD_BYTES // 16 if self.quick else COLD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What one call must do at least: the two sides of the roofline."""

    moved_bytes: float
    """Read and written, each byte once."""

    working_set_bytes: int
    """Memory that the calls take turns in: it says which cache, or none, serves the bytes."""

    ops: float = 0.0
    """Two for each multiply-add; 0 where arithmetic cannot be the bound."""

    arithmetic: Arithmetic = "fma"
    """In which the operations are done."""

    threads: int = 1


class Verdict(NamedTuple):
    """How far a result is from the reference."""

    error: float
    limit: float
    measure: str
    """What the error is, in words."""

    @property
    def right(self) -> bool:
        """A NaN is never right."""
        return self.error <= self.limit


class Prepared(NamedTuple):
    """A case with its data in memory."""

    run: Callable[[], object]
    """One call. Each takes the next piece of the working set."""

    check: Callable[[], Verdict]
    """Calls the kernel on inputs of its own and judges the result."""

    overhead: Callable[[], object]
    """A call through the same Python face that computes nothing: its time is taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel at one size."""

    kernel: str
    """linear, attention, rms_norm, …"""

    name: str
    """The rest: type, shape, rows."""

    bound: Bound
    prepare: Callable[[], Prepared]

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.name}"

    def matches(self, words: tuple[str, ...]) -> bool:
        """Whether one of the words occurs in the title; no words: yes."""
        title = self.title.lower()
        return not words or any(word.lower() in title for word in words)


ALL_KV_DTYPES = tuple(KV_DTYPES)
