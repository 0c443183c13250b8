"""Options that several commands have, and how they become the engine's configuration."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from kokuban.cli.commands import Argument, Option
from kokuban.core.config import Eviction, KvDtype, RuntimeConfig, SchedulerConfig, parse_bytes
from kokuban.core.errors import ConfigError
from kokuban.observe.memory import settle_garbage, settle_heap

if TYPE_CHECKING:
    from kokuban.engine.engine import Engine


def check_json(path: Path | None) -> Path | None:
    """Whether `--json` can be written, asked before anything is measured; nothing is created.

    Raises:
        ConfigError: it cannot.
    """
    if path is None:
        return None
    way_out = "name a file in a directory that can be written"
    real = Path(os.path.realpath(path))  # What a link points to may not exist yet.
    try:
        exists = _exists(real)
    except OSError as error:
        raise ConfigError(
            f"--json {path} cannot be written: {error.strerror}; {way_out}"
        ) from error
    if real.is_dir():
        raise ConfigError(f"--json {path} is a directory; name a file in it")
    if not exists and not real.parent.is_dir():
        raise ConfigError(f"--json {path} cannot be written: there is no {real.parent}; {way_out}")
    if not os.access(real if exists else real.parent, os.W_OK):
        raise ConfigError(f"--json {path} cannot be written: no permission; {way_out}")
    return path


def _exists(path: Path) -> bool:
    """Unlike `Path.exists`, fails for a name that cannot be."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


DEFAULT_MODEL = "smollm2"
DEFAULTS = SchedulerConfig()

Model = Annotated[
    str,
    Argument(
        help="A GGUF file, a folder with config.json and safetensors, a hub id, or a short name "
        "(see `kokuban models`)."
    ),
]
MaxContextTokens = Annotated[
    int,
    Option(help="Most tokens of one request, prompt and answer. 0: what model and pool allow."),
]
BlockSize = Annotated[int, Option(help="Tokens in a KV block: 16, 32, 64 or 128.")]
KvDtypeName = Annotated[
    str, Option(help="Type of K and V in the pool: bf16, fp16, fp32, int8 or fp8_e4m3.")
]
KvMemory = Annotated[
    str | None,
    Option(help="Size of the KV pool, like 2GiB. By default a share of what is free."),
]
KvRam = Annotated[
    str | None,
    Option(help="Host memory for KV that left the pool, like 4GiB. By default none."),
]
KvDisk = Annotated[
    str | None,
    Option(help="Disk for KV that left the pool, kept over restarts. By default none."),
]
KvDiskDir = Annotated[
    Path | None, Option(help="Where on disk. Default: `kv` in the cache directory.")
]
PublicPrefix = Annotated[
    list[Path] | None,
    Option(
        help="Text file with a system message, or a prompt's beginning, whose KV all tenants "
        "share; may be repeated."
    ),
]
EvictionPolicy = Annotated[
    str,
    Option(help="Cached KV to be lost first: lru (unused longest) or cost (cheapest)."),
]
StepTargetMs = Annotated[
    float | None,
    Option(help="About how long a step should take while others decode. Default: no limit."),
]
Threads = Annotated[int, Option(help="Threads that compute. 0: the CPUs of this process.")]
Quantize = Annotated[
    str, Option(help="Quantise 16- and 32-bit weights at load: none, int8 or int4.")
]
Speculate = Annotated[
    str,
    Option(
        metavar="ngram|MODEL",
        help="Guess tokens ahead, from the text itself or with a smaller model of the same "
        "vocabulary: same text, fewer steps.",
    ),
]
EngineKind = Annotated[
    str,
    Option(
        metavar="thread|process",
        help="Where the engine runs: on a thread of the server, or in a process that is started "
        "again when it dies.",
    ),
]
NoPrefixCache = Annotated[
    bool,
    Option("--no-prefix-cache", help="Compute every prompt from its start; keep no KV for later."),
]
JsonFile = Annotated[
    Path | None,
    Option("--json", check=check_json, help="Write the figures to this file too."),
]
MaxTokens = Annotated[int, Option(help="Most new tokens of an answer.")]
Temperature = Annotated[float, Option(help="0 always takes the most likely token.")]
Seed = Annotated[int | None, Option(help="Same seed, same text.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What was given on the command line, not yet checked."""

    model: str
    token_budget: int = DEFAULTS.token_budget
    max_prefill_tokens: int | None = None
    step_target_ms: float | None = None
    max_running_requests: int | None = None
    max_waiting_requests: int = DEFAULTS.max_waiting_requests
    max_queue_wait: float | None = None
    max_context_tokens: int = 0
    block_size: int = DEFAULTS.block_size
    kv_dtype: str = "bf16"
    kv_memory: str | None = None
    kv_ram: str | None = None
    kv_disk: str | None = None
    kv_disk_dir: Path | None = None
    public_prefix: list[Path] | None = None
    eviction: str = "lru"
    threads: int = 0
    quantize: str = "none"
    speculate: str = ""
    no_prefix_cache: bool = False
    served_name: str | None = None
    engine: str = "thread"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "EngineOptions":
        """Those of a command's options, by name, that are about the engine."""
        return cls(
            served_name=first(given["served_model_name"]),
            **{name: given[name] for name in cls.__slots__ if name in given},
        )

    def scheduler(self) -> SchedulerConfig:
        """Raises `ConfigError` for values that cannot work together."""
        running = self.max_running_requests
        if running is None:  # The default must not forbid a small budget.
            running = max(1, min(DEFAULTS.max_running_requests, self.token_budget))
        return SchedulerConfig(
            token_budget=self.token_budget,
            max_prefill_tokens=self.max_prefill_tokens,
            step_target_ms=self.step_target_ms,
            max_running_requests=running,
            max_waiting_requests=self.max_waiting_requests,
            max_queue_wait_s=self.max_queue_wait,
            block_size=self.block_size,
            max_context_tokens=self.max_context_tokens,
            prefix_cache=not self.no_prefix_cache,
            eviction=cast("Eviction", self.eviction),
        )

    def runtime(self) -> RuntimeConfig:
        """Raises `ConfigError` for values that do not exist."""
        if self.quantize not in ("none", "int8", "int4"):
            raise ConfigError(f"quantize={self.quantize} is none of none, int8, int4")
        return RuntimeConfig(
            kv_dtype=cast("KvDtype", self.kv_dtype),
            kv_memory_bytes=parse_bytes(self.kv_memory) if self.kv_memory is not None else None,
            kv_ram_bytes=parse_bytes(self.kv_ram or "0"),
            kv_disk_bytes=parse_bytes(self.kv_disk or "0"),
            kv_disk_dir=self.kv_disk_dir,
            public_prefixes=tuple(map(_read, self.public_prefix or ())),
            threads=self.threads,
            quantize=cast("Any", self.quantize),
            speculate=self.speculate,
        )


def first(values: list[str] | None) -> str | None:
    """Of an option that may be repeated the one that was given first."""
    return values[0] if values else None


def _read(path: Path) -> str:
    """A text file, without the line end that editors put there."""
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--public-prefix {path} cannot be read: {error}") from error


@contextmanager
def open_engine(
    options: EngineOptions, meanwhile: Callable[[], object] = lambda: None
) -> Iterator["Engine"]:
    """An engine with its model loaded, closed at the end; the model is fetched if it is not here.

    Args:
        meanwhile: called while the weights are packed on another thread.

    Raises:
        ConfigError: an option or the model cannot work.
    """
    scheduler, runtime = options.scheduler(), options.runtime()
    if options.engine not in ("thread", "process"):
        raise ConfigError(f"engine={options.engine} is none of thread, process")
    settle_heap()
    opening = _open_thread if options.engine == "thread" else _open_process
    engine = opening(options, scheduler, runtime, meanwhile)
    settle_garbage()
    try:
        yield engine
    finally:
        engine.close()


def _open_thread(
    options: EngineOptions,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    meanwhile: Callable[[], object],
) -> "Engine":
    from kokuban.cli.progress import progress_bars
    from kokuban.engine.loading import begin_loading

    with (
        progress_bars() as report,
        begin_loading(
            options.model,
            runtime=runtime,
            on_load=partial(report, "packing weights"),
            on_pull=report,
        ) as loading,
    ):
        from kokuban.engine.build import build_engine

        meanwhile()
        return build_engine(
            loading,
            scheduler=scheduler,
            runtime=runtime,
            served_name=options.served_name,
            serves=True,
        )


def _open_process(
    options: EngineOptions,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    meanwhile: Callable[[], object],
) -> "Engine":
    from kokuban.cli.progress import progress_bars
    from kokuban.engine.process.open import open_engine_process

    with progress_bars() as report:
        return open_engine_process(
            options.model,
            scheduler=scheduler,
            runtime=runtime,
            served_name=options.served_name,
            report=report,
            meanwhile=meanwhile,
        )
