"""The composition root: from a model's name to an engine that runs.

Everything is built here once and handed its values; no component looks up another, and nobody
below sees a whole configuration.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.env import ISA_LEVELS, max_isa
from kokuban.engine.client import EngineInfo
from kokuban.engine.core import EngineCore
from kokuban.engine.thread import EngineThread
from kokuban.kernels.native import ThreadPool, isa_level
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.storage import KvStorage
from kokuban.models.registry import build_program
from kokuban.observe.clock import SystemClock
from kokuban.observe.machine import allowed_cpus
from kokuban.plan.memory import KvBudget, plan_kv
from kokuban.program.program import Program
from kokuban.runner.load import Progress, load_weights
from kokuban.runner.native import NativeExecutor
from kokuban.scheduler.scheduler import Scheduler
from kokuban.text.chat import ChatTemplate
from kokuban.text.load import load_text
from kokuban.text.tokenizer import Tokenizer
from kokuban.weights.pull import resolve
from kokuban.weights.source import ModelSource, open_source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model that runs, with its text side. Made by `build_engine`."""

    client: EngineThread
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    end_token_ids: frozenset[int]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """Token ids of a conversation, with the header of the answer."""
        return self.chat_template.encode_chat(self.tokenizer, messages, **template)

    def close(self) -> None:
        """Stop after the step that runs, and give memory and threads back."""
        self.client.close()


def build_engine(
    model: str | Path,
    *,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    served_name: str | None = None,
    on_load: Progress | None = None,
    on_pull: Callable[..., None] | None = None,
) -> Engine:
    """Find, read and pack a model, and start its engine.

    Args:
        model: a GGUF file, a Hugging Face style directory, a hub id or a short name.
        served_name: what the API calls it; by default what `model` says.
        on_load, on_pull: told how far packing and downloading have come.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run with these settings.
    """
    path = resolve(str(model), progress=on_pull)
    source = open_source(path)
    tokenizer, chat_template = load_text(source.tokenizer_source())
    program = build_program(source.config)
    threads = runtime.threads or allowed_cpus()
    pool = ThreadPool(threads)
    weights = load_weights(
        source, program, source.config, pool=pool, quantize=runtime.quantize, progress=on_load
    )
    layout = KvLayout(
        block_size=scheduler.block_size,
        num_kv_heads=program.kv.num_kv_heads,
        head_dim=program.kv.head_dim,
        layers_per_group=len(program.kv.groups[0].layers),
        dtype=runtime.kv_dtype,
    )
    ...
