"""The `kokuban` command. What it needs beyond the standard library is imported when it is used.

What the operator did wrong is one line on standard error and exit code 2; a request that failed is
one line and exit code 1; a traceback is always a fault of ours.
"""

import gc
import sys

import click

from kokuban import __version__
from kokuban.cli.commands import Group
from kokuban.core.errors import ConfigError, KokubanError, RequestError

app = Group(
    {
        "serve": "kokuban.cli.serve:serve",
        "run": "kokuban.cli.talk:run",
        "chat": "kokuban.cli.talk:chat",
        "run-batch": "kokuban.cli.run_batch:run_batch",
        "pull": "kokuban.cli.models:pull",
        "inspect": "kokuban.cli.models:inspect",
        "models": "kokuban.cli.models:models",
        "simulate": "kokuban.cli.simulate:simulate",
        "bench": Group(
            {
                "latency": "kokuban.cli.bench:latency",
                "throughput": "kokuban.cli.bench:throughput",
                "serve": "kokuban.cli.bench_serve:serve",
                "kernels": "kokuban.cli.bench_kernels:kernels",
                "machine": "kokuban.cli.bench_machine:machine",
                "kv-quant": "kokuban.cli.bench_kv:kv_quant",
            },
            help="Measure speed, here or of a server.",
        ),
        "cache": Group(
            {
                "ls": "kokuban.cli.cache:ls",
                "rm": "kokuban.cli.cache:rm",
                "verify": "kokuban.cli.cache:verify",
            },
            help="List, delete and check KV blocks on disk.",
        ),
    },
    help="An LLM inference engine and server that shows its work.",
)
click.version_option(__version__, message="kokuban %(version)s", help="Show the version.")(app)


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
    click.echo(f"kokuban: {' '.join(str(error).split())}", err=True)
    sys.exit(code)
