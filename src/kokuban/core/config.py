"""What the operator chose. What the machine has is not in here: see `plan.memory`."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from kokuban.core.errors import ConfigError

Quantize = Literal["none", "int8", "int4"]
KvDtype = Literal["bf16", "fp16", "fp32", "int8", "fp8_e4m3"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
KV_ELEMENT_BYTES: Mapping[KvDtype, int] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "int8": 1,
    "fp8_e4m3": 1,
}
KV_SCALE_BYTES: Mapping[KvDtype, int] = {"bf16": 0, "fp16": 0, "fp32": 0, "int8": 4, "fp8_e4m3": 4}
"""Of the one scale that the K of a token and head has, and its V; 0: none."""
Eviction = Literal["lru", "cost"]
EVICTIONS: tuple[Eviction, ...] = get_args(Eviction)

MAX_THREADS = 512
MAX_TOKEN_BUDGET = 2**20

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of the queue."""

    token_budget: int = 2048
    """Tokens computed in one step, over all requests. Higher: more throughput, longer ITL."""

    max_prefill_tokens: int | None = None
    """Cap on the prefill part of a step; None: only the token budget limits it."""

    step_target_ms: float | None = None
    """About how long a step should take while somebody decodes: its prefill part is cut to that.
    None: only the token budget limits it."""

    max_running_requests: int = 256
    max_waiting_requests: int = 4096
    """Those that no free seat awaits; beyond it a new request is refused with 429."""

    max_queue_wait_s: float | None = None
    """What a request may wait before it begins, at most: one that is likely to wait longer is
    refused at once, and one that does wait so long is ended. None: any time."""

    block_size: int = 16
    """Tokens in a KV block."""

    prefix_cache: bool = True
    """Whether KV that was computed is kept and found again by requests that begin the same."""

    eviction: Eviction = "lru"
    """Which cached block is handed out next: the one free longest, or the one whose loss is likely
    to cost least (FLOPs to compute it again, times its reuse, for each of its bytes)."""

    pin_share: float = 0.5
    """Share of the pool that pins and paused sessions of one tenant may have handed out last."""

    max_context_tokens: int = 0
    """Prompt and output of one request together. 0: what the model and the pool allow."""

    max_skips: int = 32
    """Times that smaller requests may be admitted before a waiting one that does not fit yet."""

    def __post_init__(self) -> None:
        if problems := [*self._step_problems(), *self._kv_problems()]:
            raise ConfigError("; ".join(problems))

    def _step_problems(self) -> Iterator[str]:
        if self.max_running_requests < 1:
            yield f"max_running_requests={self.max_running_requests} is below 1"
        if self.token_budget < self.max_running_requests:
            yield (
                f"token_budget={self.token_budget} cannot give each of "
                f"max_running_requests={self.max_running_requests} one token in a step"
            )
        if self.token_budget > MAX_TOKEN_BUDGET:
            yield f"token_budget={self.token_budget} is above {MAX_TOKEN_BUDGET}"
        if self.max_prefill_tokens is not None and self.max_prefill_tokens < 1:
            yield f"max_prefill_tokens={self.max_prefill_tokens} is below 1"
        if self.step_target_ms is not None and not 0 < self.step_target_ms < math.inf:
            yield f"step_target_ms={self.step_target_ms} is no time above 0"
        if self.max_waiting_requests < 1:
            yield f"max_waiting_requests={self.max_waiting_requests} is below 1"
        if self.max_queue_wait_s is not None and not 0 < self.max_queue_wait_s < math.inf:
            yield f"max_queue_wait_s={self.max_queue_wait_s} is no time above 0"
        if self.max_skips < 0:
            yield f"max_skips={self.max_skips} is negative"

    def _kv_problems(self) -> Iterator[str]:
        if self.block_size not in (16, 32, 64, 128):
            yield f"block_size={self.block_size} is none of 16, 32, 64, 128"
        if self.eviction not in EVICTIONS:
            yield f"eviction={self.eviction} is none of {', '.join(EVICTIONS)}"
        if not 0 <= self.pin_share <= 1:
            yield f"pin_share={self.pin_share} is not between 0 and 1"
        if self.max_context_tokens < 0:
            yield f"max_context_tokens={self.max_context_tokens} is negative"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What the worker is given."""

    kv_dtype: KvDtype = "bf16"
    kv_memory_bytes: int | None = None
    """Size of the KV pool. None: a modest share of the memory that is free."""

    kv_ram_bytes: int = 0
    """Host memory for KV that left the pool. 0: none."""

    kv_disk_bytes: int = 0
    """Disk for KV that left the pool; needs some host memory to pass through. 0: none."""

    kv_disk_dir: Path | None = None
    """Where on disk. None: `kv` in the cache directory."""

    public_prefixes: tuple[str, ...] = ()
    """System messages, or beginnings of raw prompts, whose KV all tenants may share."""

    threads: int = 0
    """Threads that compute, the engine's own included. 0: the CPUs that this process may use."""

    quantize: Quantize = "none"
    """Quantise 16- and 32-bit weights at load."""

    speculate: str = ""
    """What guesses tokens ahead, so that a step may bring several: "ngram" (the sequence itself) or
    a smaller model of the same vocabulary. "": nothing. No text depends on it."""

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise ConfigError(f"kv_dtype={self.kv_dtype} is none of {', '.join(KV_DTYPES)}")
        for name in ("kv_ram_bytes", "kv_disk_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is negative; 0 switches it off")
        check_threads(self.threads)


def check_threads(threads: int) -> int:
    """The number of threads that the operator chose, 0 for none.

    Raises:
        ConfigError: no machine has so many.
    """
    if not 0 <= threads <= MAX_THREADS:
        raise ConfigError(
            f"threads={threads} is not between 0 and {MAX_THREADS}; 0 takes the CPUs of this "
            f"process"
        )
    return threads


def kv_head_bytes(dtype: KvDtype, head_dim: int) -> int:
    """Bytes of the K, or of the V, of one token and one KV head, its scale included."""
    return head_dim * KV_ELEMENT_BYTES[dtype] + KV_SCALE_BYTES[dtype]


def parse_bytes(text: str) -> int:
    """Read a size such as 2GiB, 512MiB, 1.5g or 1000000.

    Raises:
        ConfigError: the text is no size.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]i?)?b?\s*", text.lower())
    if match is None:
        raise ConfigError(f"{text!r} is no size; write it like 2GiB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[match[2] or ""])
