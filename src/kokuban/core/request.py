"""What the engine is asked to do, as values that cross between its layers."""

import enum
from dataclasses import dataclass
from typing import NamedTuple, NewType

from kokuban.core.pooling import PoolingParams
from kokuban.core.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)
BlockId = NewType("BlockId", int)

NO_BLOCK = BlockId(-1)
"""Marks an entry of a block table that holds nothing; no block of the pool is reserved for it."""


class FinishReason(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Pin(NamedTuple):
    """A wish to keep the KV of a prompt's beginning for a while."""

    num_tokens: int
    """Of the prompt, from its first; 1 or more."""

    ttl_s: float
    """Seconds from the end of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt, and how its continuation is chosen or, with `pooling`, how its hidden states
    become a vector. Never changes; progress is kept elsewhere."""

    id: RequestId
    """Unique among the requests of one engine."""

    prompt_token_ids: tuple[int, ...]
    """At least one id, each below the vocabulary's size."""

    params: SamplingParams
    """`params.n` is 1 here: `engine` makes one request for each choice."""

    pooling: PoolingParams | None = None
    """Not None: the prompt is computed and pooled, and no token is sampled."""

    seed: int = 0
    """Key of the random numbers, always set: the client's, or one that the engine drew."""

    choice: int = 0
    """Which of the n choices this is: part of the counter of the random numbers."""

    end_token_ids: frozenset[int] = frozenset()
    """Ids that end the text: the model's (unless ignore_eos) and the client's."""

    arrival_s: float = 0.0
    """Seconds on the engine's clock."""

    priority: int = 0
    """Lower runs first; equal priorities share by tenant."""

    deadline_s: float | None = None
    """Time on the engine's clock after which a waiting request is refused rather than begun."""

    tenant: str = ""
    """Who pays: fair shares go by it, and nobody is given KV that another tenant has computed."""

    cache_scope: str = ""
    """Parts the tenant's prefix cache further: requests share KV only within one scope."""

    session: str = ""
    """The conversation that it belongs to, among those of its tenant; "": none."""

    pins: tuple[Pin, ...] = ()
    """What of its KV is to be kept when it has ended, as far as the tenant's quota reaches."""

    @property
    def needs_every_row(self) -> bool:
        """Whether something is told of every token of the prompt, so that all must be computed:
        what is cached or forked has KV and nothing else."""
        if self.pooling is not None:
            return self.pooling.needs_every_row
        return self.params.prompt_logprobs is not None
