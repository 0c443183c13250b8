"""How the hidden states of a prompt become one vector, as its client asked for it."""

from dataclasses import dataclass
from typing import Literal, get_args

from kokuban.core.errors import ConfigError, RequestError

Pooling = Literal["last", "mean"]
"""The hidden state of the last token, or the mean over all tokens; both after the final norm."""

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Checked at construction; the width of the model is checked where it is known."""

    pooling: Pooling = "last"
    normalize: bool = True
    """Whether the vector is scaled to length 1. One that is zero stays so."""

    dimensions: int | None = None
    """Keep the first so many numbers, before the vector is scaled. None: all."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise RequestError(
                f"pooling={self.pooling!r} is none of {', '.join(POOLINGS)}", param="pooling"
            )
        if self.dimensions is not None and self.dimensions < 1:
            raise RequestError(f"dimensions={self.dimensions} is below 1", param="dimensions")

    @property
    def needs_every_row(self) -> bool:
        """Whether all tokens must be computed, so that a cached prefix is of no use."""
        return self.pooling == "mean"


def parse_pooling(word: str) -> Pooling:
    """The operator's word for it.

    Raises:
        ConfigError: there is no such pooling.
    """
    for pooling in POOLINGS:
        if word == pooling:
            return pooling
    raise ConfigError(f"pooling={word} is none of {', '.join(POOLINGS)}")
