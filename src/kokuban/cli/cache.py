"""`kokuban cache`: the KV blocks that lie on disk. Each namespace is those of one model and layout.

Nothing here is needed for the server's sake: it bounds and repairs its own store.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import click

from kokuban.cli.commands import Argument, Option
from kokuban.core.env import cache_dir
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.kvcache.namespace import Description, NamespaceSummary

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Root = Annotated[
    Path | None, Option("--dir", help="Where namespaces lie; by default kv in the cache.")
]
Name = Annotated[str | None, Argument(metavar="[NAMESPACE]", help="As `ls` names it.")]


def ls(
    directory: Root = None,
    as_json: Annotated[bool, Option("--json", help="For programs, with all facts.")] = False,
) -> None:
    """List the namespaces: model, type, blocks, bytes, when a block was written or used last."""
    from kokuban.kvcache.namespace import list_namespaces

    root = _root(directory)
    found = list_namespaces(root)
    if as_json:
        click.echo(json.dumps([_record(each) for each in found], indent=2))
    elif found:
        _print_table(found)
    else:
        click.echo(f"no KV blocks in {root}")


def rm(
    namespace: Name = None,
    every: Annotated[bool, Option("--all", help="Delete all namespaces.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    directory: Root = None,
) -> None:
    """Delete a namespace, or all. One that a server has open is refused."""
    from kokuban.kvcache.namespace import delete_namespace

    if (namespace is None) != every:
        raise ConfigError("name one namespace (see `kokuban cache ls`), or give --all")
    root = _root(directory)
    names = [each.name for each in _chosen(root, namespace)]
    if not names:
        click.echo(f"no KV blocks in {root}")
        return
    if not yes:
        click.confirm(f"Delete {', '.join(names)} in {root}?", abort=True)

    def delete(name: str) -> None:
        delete_namespace(root / name)
        click.echo(f"deleted {name}")

    _for_each(names, delete)


def verify(
    namespace: Name = None,
    fix: Annotated[bool, Option("--fix", help="Drop the bad blocks.")] = False,
    directory: Root = None,
) -> None:
    """Read every block, of one namespace or of all. Exit code 1 if any is bad."""
    root = _root(directory)
    num_bad = sum(_for_each(_chosen(root, namespace), partial(_verify, root, fix=fix)))
    if num_bad and not fix:
        click.echo("bad blocks are never used; --fix drops them now")
    if num_bad:
        raise click.exceptions.Exit(1)


def _for_each(items: Iterable[_Item], action: Callable[[_Item], _Result]) -> list[_Result]:
    """Do something to all; what cannot be done to one is told when the others are done."""
    results, problems = [], []
    for item in items:
        try:
            results.append(action(item))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("; ".join(problems))
    return results


def _root(directory: Path | None) -> Path:
    return cache_dir() / "kv" if directory is None else directory.expanduser()


def _chosen(root: Path, name: str | None) -> "list[NamespaceSummary]":
    from kokuban.kvcache.namespace import list_namespaces

    found = list_namespaces(root)
    chosen = [each for each in found if name in (None, each.name)]
    if name is not None and not chosen:
        known = ", ".join(each.name for each in found) or "none"
        raise ConfigError(f"{name} is no namespace in {root}; there are: {known}")
    return chosen


def _verify(root: Path, summary: "NamespaceSummary", *, fix: bool) -> int:
    """Check one namespace and tell; returns its number of bad blocks."""
    from kokuban.kvcache.disk_store import DiskStore

    description = summary.description
    if description is None:
        raise ConfigError(
            f"{root / summary.name} does not say what it holds; a server that uses it repairs "
            f"that, or `kokuban cache rm {summary.name}` deletes it"
        )
    geometry = description.geometry
    store = DiskStore.open(
        root / summary.name,
        payload_bytes=geometry.payload_bytes,
        max_bytes=None,
        secret=_secret_of(description, root / summary.name),
        facts=description.facts,
        segment_bytes=geometry.slots_per_segment * geometry.slot_bytes,
    )
    try:
        report = store.verify(fix=fix)
        lost = store.counters.lost_at_open
    finally:
        store.close()
    num_bad = len(report.bad) + lost
    click.echo(
        f"{summary.name}: {report.num_blocks + lost:,} blocks, {num_bad:,} bad"
        + (" and dropped" if num_bad and fix else "")
    )
    return num_bad


def _secret_of(description: "Description", path: Path) -> bytes:
    """This installation's secret, if it is the one that the blocks were written with."""
    from kokuban.engine.cache_keys import SECRET_NAME, load_secret
    from kokuban.kvcache.slot_format import SlotFormat

    file = cache_dir() / SECRET_NAME
    if file.exists():
        secret = load_secret(cache_dir())
        geometry = description.geometry
        if SlotFormat(geometry.payload_bytes, secret).secret_id == geometry.secret_id:
            return secret
    raise ConfigError(
        f"{path} was written with another secret than {file}, so that it cannot be checked; set "
        f"KOKUBAN_CACHE to the cache of the server that wrote it"
    )


def _print_table(found: "Sequence[NamespaceSummary]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("namespace", "model", "KV dtype", "blocks", "bytes", "last used"):
        numeric = name in ("blocks", "bytes")
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for each in found:
        facts = each.description.facts if each.description else {}
        table.add_row(
            each.name,
            facts.get("model", "?"),
            facts.get("kv_dtype", "?"),
            f"{each.num_blocks:,}" if each.description else "?",
            f"{each.num_bytes:,}",
            _when(each.last_used_s),
        )
    Console(highlight=False, markup=False).print(table)


def _record(summary: "NamespaceSummary") -> dict[str, object]:
    description = summary.description
    return {
        "namespace": summary.name,
        "facts": dict(description.facts) if description else None,
        "block_bytes": description.geometry.payload_bytes if description else None,
        "blocks": summary.num_blocks if description else None,
        "bytes": summary.num_bytes,
        "last_used": _when(summary.last_used_s),
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
