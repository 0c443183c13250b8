"""`kokuban pull`, `inspect` and `models`: what there is to run."""

from typing import TYPE_CHECKING, Annotated

import click

from kokuban.cli import options
from kokuban.cli.commands import Argument

if TYPE_CHECKING:
    from kokuban.weights.inspect import ModelDescription


def pull(
    name: Annotated[str, Argument(help="A short name, owner/name or owner/name:FILE.gguf.")],
) -> None:
    """Fetch a model and print where it lies."""
    from kokuban.cli.progress import progress_bars
    from kokuban.weights.pull import resolve

    with progress_bars() as report:
        path = resolve(name, progress=report)
    click.echo(path)


def models() -> None:
    """List the models that have a short name."""
    from rich.console import Console
    from rich.table import Table

    from kokuban.weights.registry import list_models

    table = Table(box=None, pad_edge=False)
    for name in ("name", "model", "licence", "from"):
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for entry in list_models():
        table.add_row(entry.name, entry.title, entry.license, entry.origin)
    Console().print(table)


def inspect(model: options.Model) -> None:
    """Print what a model's files hold: architecture, sizes, types, tokenizer, template."""
    from rich.console import Console

    from kokuban.cli.progress import progress_bars
    from kokuban.weights.inspect import describe
    from kokuban.weights.pull import resolve
    from kokuban.weights.source import open_source

    with progress_bars() as report:
        path = resolve(model, progress=report)
    facts = describe(open_source(path))
    console = Console(highlight=False)
    for name, value in _rows(facts):
        console.print(f"{name:<14}{value}", markup=False, soft_wrap=True)


def _rows(facts: "ModelDescription") -> list[tuple[str, str]]:
    """Names and values, in the order in which they are printed."""
    config = facts.config
    heads = f"{config.num_query_heads} query, {config.num_kv_heads} KV, {config.head_dim} wide"
    template = "yes" if facts.chat_template else "no"
    if facts.named_templates:
        template += f" (also {', '.join(facts.named_templates)})"
    rows = [
        ("path", facts.path),
        ("format", facts.format),
        ("name", config.name),
        ("architecture", config.architecture),
        ("layers", f"{config.num_layers}"),
        ("hidden", f"{config.hidden_size}, feed-forward {config.intermediate_size}"),
        ("heads", heads),
        ("context", f"{config.max_positions:,} tokens"),
        ("window", f"{config.sliding_window:,} tokens" if config.sliding_window else "none"),
        ("parameters", f"{facts.num_parameters:,} ({facts.bits_per_weight:.2f} bits each)"),
        ("bytes", f"{facts.num_bytes:,}"),
        ("KV", f"{facts.kv_bytes_per_token:,} bytes a token in bf16"),
        ("tokenizer", facts.tokenizer),
        ("vocabulary", f"{facts.num_tokens or '?'} tokens, {config.vocab_size} rows"),
        ("template", template),
        ("end tokens", ", ".join(str(token_id) for token_id in facts.end_token_ids) or "none"),
        ("digest", facts.digest),
    ]
    rows += [
        (f"  {kind.name}", f"{use.num_tensors} tensors, {use.num_bytes:,} bytes")
        for kind, use in facts.types.items()
    ]
    return rows
