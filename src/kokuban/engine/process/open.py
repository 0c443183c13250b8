"""Opens a model whose engine runs in a process of its own."""

from collections.abc import Callable

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.engine.engine import Engine
from kokuban.engine.process.client import ProcessClient
from kokuban.weights.progress import Progress
from kokuban.weights.pull import resolve


def open_engine_process(
    model: str,
    *,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    served_name: str | None,
    report: Progress,
    meanwhile: Callable[[], object],
) -> Engine:
    """Find a model, start its engine process, and build the text side here while it loads.

    Args:
        report: told how far downloading and packing have come, on any thread.
        meanwhile: called while the engine loads.

    Raises:
        ConfigError, ModelError: it cannot be found, read or run with these settings.
        StepFailed: the process died.
    """
    files = resolve(model, progress=report)
    client = ProcessClient(files, served_name or model, scheduler, runtime, report=report)
    try:
        # Imported when the process has begun: it takes as long as its own imports.
        from kokuban.text.load import load_text
        from kokuban.weights.source import open_source

        meanwhile()
        source = open_source(files)
        text = load_text(source.tokenizer_source())
        client.wait_ready()
    except BaseException:
        client.close()
        raise
    return Engine(client, *text, text.tokenizer.end_ids | source.end_token_ids)
