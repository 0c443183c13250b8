"""What scheduler and runner exchange, and what the engine tells the server.

The scheduler hands out a `StepPlan`, the runner answers with a `StepResult`, the scheduler turns
that into `TokenEvent`s. Nothing in them changes once it is made. What a step has one of for each
request is a tuple: that is made in a third of the time that a frozen dataclass takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kokuban.core.request import BlockId, FinishReason, Request, RequestId
from kokuban.core.session import Origin

STEP_SIZES = (1, *(2**power for power in range(3, 15)))
"""Tokens of a step up to which steps are counted together, 1 to 16,384: vLLM's, for dashboards."""


class TokenLogprob(NamedTuple):
    """One token and the natural logarithm of its probability."""

    token_id: int
    logprob: float


class SampledToken(NamedTuple):
    """A token that the model said, or that it was made to score."""

    token_id: int
    logprob: float = 0.0
    """Under the model's own distribution: before temperature, penalties and filters."""

    top: tuple[TokenLogprob, ...] = ()
    """The most likely tokens, best first, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that begins, or begins again after preemption: the runner gives it a row."""

    request: Request
    output_token_ids: tuple[int, ...] = ()
    """What it had generated before it was preempted: penalties and counters go on from there."""


class BlockRewrite(NamedTuple):
    """An entry of a block table that changes: its block was shared, and is about to be written."""

    group: int
    """Index of the KV group."""

    logical_block: int
    """Which entry of the request's table, from 0."""

    block: BlockId
    """What it is from now on. A copy of the old one, see `StepPlan.moves`."""


class Chunk(NamedTuple):
    """The piece of one request that a step computes."""

    request_id: RequestId
    start: int
    """Index in the sequence of the first token to compute. All before it are in the KV cache."""

    token_ids: tuple[int, ...]
    """The tokens to compute, at positions start and up. More than one while prefilling; never 0."""

    new_block_ids: tuple[tuple[BlockId, ...], ...]
    """For each KV group, the block ids to append to the request's table before this step."""

    samples: bool
    """Whether the chunk reaches the end of the sequence, so that its last token is sampled from."""

    rewrites: tuple[BlockRewrite, ...] = ()
    """Entries that earlier chunks of the request brought and that change before this step."""

    num_drafts: int = 0
    """How many of the tokens, the last ones, are guesses of what will be sampled. Each is accepted
    if the token before it samples it and all drafts before it were; 1 to num_drafts + 1 tokens
    come out. After such a chunk the request's tables end with its last accepted token: runner and
    manager both drop what blocks lie beyond."""


class BlockCopy(NamedTuple):
    """Copy a block inside the pool (copy on write)."""

    source: BlockId
    target: BlockId


class BlockStore(NamedTuple):
    """Copy a block down to a slot of host memory."""

    block: BlockId
    slot: int


class BlockLoad(NamedTuple):
    """Copy a slot of host memory up into a block."""

    slot: int
    block: BlockId


BlockMove = BlockCopy | BlockStore | BlockLoad


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the runner does next."""

    step: int
    """Counts up from 0."""

    chunks: tuple[Chunk, ...]
    """In batch order; no request occurs twice. Empty when a step only moves blocks."""

    admitted: tuple[Admission, ...] = ()
    """Requests whose first chunk (since they began, or began again) is in this step."""

    ended: tuple[RequestId, ...] = ()
    """Requests with a row that finished, were cancelled or preempted since the last plan."""

    moves: tuple[BlockMove, ...] = ()
    """Made one after the other, each seeing what the ones before left, and all before the step's
    first write. Whoever plans puts them down in the order in which it decides, so that a block may
    be copied down, handed out again and filled in one step."""

    preempted: tuple[RequestId, ...] = ()
    """Requests that lost their blocks to make room, and wait again; also in `ended`."""

    @property
    def copies(self) -> tuple[BlockCopy, ...]:
        """Those moves that stay inside the pool."""
        return tuple(move for move in self.moves if isinstance(move, BlockCopy))

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes, over all chunks."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class ChunkOutput(NamedTuple):
    """What the runner found for one chunk."""

    tokens: tuple[SampledToken, ...] = ()
    """1 to k + 1 new tokens when the chunk samples, else none."""

    prompt_logprobs: tuple[SampledToken, ...] = ()
    """With `prompt_logprobs`: how likely each prompt token at positions start + 1 up to the end
    of the chunk (and the one after it, if that is still prompt) was under the tokens before it."""

    error: str | None = None
    """This request failed, and only this one: logits that are not finite, for instance."""

    embedding: bytes | None = None
    """With `pooling`, at the end of the prompt: the vector, float32 in little-endian order."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner found, for every chunk of the plan that samples, scores or failed."""

    step: int
    outputs: Mapping[RequestId, ChunkOutput]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of one request so far: the receipt."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV was found, in whatever tier."""

    cached_ram_tokens: int = 0
    """Those of them that came up from host memory."""

    cached_disk_tokens: int = 0
    """Those of them that came up from disk."""

    forked_tokens: int = 0
    """Prompt tokens whose KV another choice of the same prompt computed, for this one too."""

    cache_write_tokens: int = 0
    """Prompt tokens whose KV can be found from now on and could not before."""

    resumed_from: Origin = ""
    """Where the KV of its session came from, if that was paused before."""

    drafted_tokens: int = 0
    """Tokens that were guessed before they were sampled."""

    accepted_tokens: int = 0
    """Those of them that were right: output tokens that cost no step of their own."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


class TokenEvent(NamedTuple):
    """News of one request, from the engine to whoever waits for it."""

    request_id: RequestId
    tokens: tuple[SampledToken, ...]
    """New tokens, in order. An end token is included as the last one."""

    prompt_logprobs: tuple[SampledToken, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None
    """With the first token, since a stop string may end the request early, and with `finish`."""

    embedding: bytes | None = None
    """With `finish` of a request that pools: see `ChunkOutput`."""

    retry_after_s: int | None = None
    """With an error: it is nobody's fault, the request waited too long; when to try again."""
