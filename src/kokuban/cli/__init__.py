"""The `kokuban` command. What it needs beyond the standard library is imported when it is used.

What the operator did wrong is one line on standard error and exit code 2; a request that failed is
one line and exit code 1; a traceback is always a fault of ours.
"""

import gc
import sys
from typing import Annotated

import typer

from kokuban import __version__
from kokuban.cli.bench import bench
from kokuban.cli.cache import cache
from kokuban.cli.models import inspect, models, pull
from kokuban.cli.run_batch import run_batch
from kokuban.cli.serve import serve
from kokuban.cli.simulate import simulate
from kokuban.cli.talk import chat, run
from kokuban.core.errors import ConfigError, KokubanError, RequestError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kokuban {__version__}")
        raise typer.Exit


@app.callback()
def kokuban(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """An LLM inference engine and server that shows its work."""


for command in (serve, run, chat, run_batch, pull, inspect, models, simulate):
    app.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")


def main() -> None:
    """The entry point of the command."""
    # What a start builds lives as long as the process: searching it for garbage took a sixth of
    # the time to /ready. `open_engine` switches the collector on again.
    gc.disable()
    try:
        app()
    except (ConfigError, RequestError) as error:  # here the operator is the client
        _give_up(error, 2)
    except KokubanError as error:
        _give_up(error, 1)


def _give_up(error: KokubanError, code: int) -> None:
    typer.echo(f"kokuban: {' '.join(str(error).split())}", err=True)
    sys.exit(code)
