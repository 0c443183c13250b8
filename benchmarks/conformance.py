"""Does every answer look as the documents say: our own, and OpenAI's description of its API?

Run:    python -m benchmarks.conformance [--cases 10000] [--seed 0] [--openai openapi.json]
        [--openai-cases 2000] [--minutes 20] [--only listModels] [--show 20]
        [--why 5]
Needs:  schemathesis 4 (`pip install schemathesis`).
Reads:  for each operation its cases; of those that the document allows how many were answered, and
        with --why the reasons for refusing others; answers 5xx; answers and events that no schema
        allows; streams and their events; requests that the document does not allow and that were
        answered all the same. Exit code 1 where one of the columns 5xx, bad and lenient is not 0.

`kokuban serve` runs in a process of its own with the model of `tests/clients/scripted_model.py`.
Schemathesis makes the requests: some that a document allows, and for our own document some that it
does not. Nine of ten of the first kind are made such that this server can answer them
(`conformance_aim`); the tenth shows that the rest is refused in good order. Streams are judged
here, event by event: Schemathesis does not look into them.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import schemathesis
from benchmarks.conformance_documents import KEY, Document, narrowed, openai_document, own_document
from benchmarks.conformance_run import Row, Run, Target
from schemathesis.checks import load_all_checks
from tests.clients.scripted_model import call_text, write_model
from tests.server.child import Child, serving

OPTIONS = ("--max-context-tokens", "8192", "--kv-memory", "64M", "--admin-key", KEY)
NUM_PLAIN = 20
"""Cases of an operation that takes nothing: all of them are the same."""
ROUND = 100
"""Cases of an operation in a row, before the next one has its turn."""


@contextmanager
def server() -> Iterator[Child]:
    """A server whose model calls a tool where it may, and answers a word else."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, call_text("f", {"a": 1}), "Fine.")
        with serving(model, Path(folder) / "cache", *OPTIONS) as child:
            yield child


def share(document: Document, num_cases: int) -> dict[str, int]:
    """How many cases each operation gets: two parts with a body, one without, few of the rest."""
    weights = {
        name: 2 if "requestBody" in operation else int(bool(operation.get("parameters")))
        for name, operation in document.operations().items()
    }
    part = num_cases / sum(weights.values())
    return {name: max(NUM_PLAIN, round(weight * part)) for name, weight in weights.items()}


def judge(
    document: Document, target: Target, args: argparse.Namespace, num_cases: int
) -> list[Row]:
    """Run all operations of a document in turns, until they have their cases or time is up."""
    load_all_checks()
    schema = schemathesis.openapi.from_dict(narrowed(document.raw))
    schema.config.max_stream_events = 10**6  # Or it leaves long streams before they end.
    run = Run(document, target, args.seed)
    only = set(args.only.split(",")) if args.only else None
    found = [each.ok() for each in schema.get_all_operations()]
    operations = {each.definition.raw["operationId"]: each for each in found}
    left = {
        n: count for n, count in share(document, num_cases).items() if only is None or n in only
    }
    rows = {name: Row(name) for name in left}
    end_s = time.perf_counter() + args.minutes * 60
    number = 0
    while any(left.values()) and time.perf_counter() < end_s:
        for name in left:
            count = min(ROUND, left[name])
            if count and time.perf_counter() < end_s:
                run.round(operations[name], rows[name], count, number)
            left[name] -= count
        number += 1
    for row in rows.values():
        print(line(document.name, row), flush=True)
        for violation in row.violations[: args.show]:
            print(f"    {violation}", flush=True)
        for why, count in row.refusals.most_common(args.why):
            print(f"    {count:6} {why}", flush=True)
    return list(rows.values())


COLUMNS = "{:8} {:32} {:>6} {:>7} {:>8} {:>4} {:>4} {:>7} {:>7} {:>7}  {}"
HEAD = COLUMNS.format(
    "document", "operation", "cases", "allowed", "answered", "5xx", "bad", "lenient", "streams",
    "events", "statuses",
)  # fmt: skip


def line(document: str, row: Row) -> str:
    """A line of the table."""
    return COLUMNS.format(
        document, row.name[:32], row.num_cases, row.num_allowed, row.num_answered,
        row.num_server_errors, len(row.violations), row.num_lenient, row.num_streams,
        row.num_events, dict(sorted(row.statuses.items())),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--openai", type=Path, help="OpenAI's openapi.json")
    parser.add_argument("--openai-cases", type=int, default=2_000)
    parser.add_argument("--minutes", type=float, default=600, help="most for each document")
    parser.add_argument("--only", help="operationIds, with commas")
    parser.add_argument("--why", type=int, default=0, help="reasons of refusals to be shown")
    parser.add_argument("--show", type=int, default=20, help="violations of each operation")
    args = parser.parse_args()
    start_s = time.perf_counter()
    with server() as child:
        target = Target(child.url)
        print(HEAD)
        rows = judge(own_document(child.url), target, args, args.cases) if args.cases else []
        if args.openai:
            target.is_ours = False
            rows += judge(openai_document(args.openai, child.url), target, args, args.openai_cases)
        log = child.log.read_text()
    print("tracebacks in the log:", log.count("Traceback"))
    if "Traceback" in log:
        print(log[log.index("Traceback") :][:6000])
    num_bad = sum(len(row.violations) + row.num_server_errors for row in rows)
    print(f"{sum(row.num_cases for row in rows)} cases in {time.perf_counter() - start_s:.0f} s")
    sys.exit(bool(num_bad))


if __name__ == "__main__":
    main()
