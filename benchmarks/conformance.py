"""Does every answer look as the documents say: our own, and OpenAI's description of its API?

Run:    python -m benchmarks.conformance [--cases 10000] [--seed 0] [--openai openapi.json]
        [--openai-cases 2000] [--only createResponse,listModels] [--show 20]
Needs:  schemathesis 4 (`pip install schemathesis`).
Reads:  for each operation its cases, how many succeeded, answers 5xx, answers and events that no
        schema allows, events of streams. Exit code 1 where something was wrong.

`kokuban serve` runs in a process of its own with the model of `tests/clients/scripted_model.py`.
Schemathesis makes the requests: some that a document allows, and for our own document some that it
does not. Nine of ten are given the served model's name and the id of what exists, or nearly all
would be a 404. Streams are judged here, event by event: Schemathesis does not look into them.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from benchmarks.conformance_documents import (
    STREAM,
    Document,
    event_data,
    openai_document,
    own_document,
)
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks as openapi_checks
from tests.clients.scripted_model import call_text, write_model
from tests.server.child import Child, serving

SCHEMA_CHECK = openapi_checks.response_schema_conformance
CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    SCHEMA_CHECK,
]
SUPPRESSED = list(HealthCheck)
OPTIONS = ("--max-context-tokens", "256", "--kv-memory", "64M")
NUM_PLAIN = 20
"""Cases of an operation that takes nothing: all of them are the same."""


@dataclass
class Row:
    """What was found of one operation."""

    name: str
    statuses: Counter[int] = field(default_factory=Counter)
    num_events: int = 0
    num_streams: int = 0
    num_taken: int = 0
    """Of the requests that the document does not allow: those that succeeded."""

    violations: list[str] = field(default_factory=list)

    @property
    def num_cases(self) -> int:
        return self.statuses.total()

    @property
    def num_successes(self) -> int:
        return sum(count for status, count in self.statuses.items() if status < 300)

    @property
    def num_server_errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 500)


class Target:
    """The server, and what exists on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=60)

    def response_id(self) -> str:
        """A new response, of which the stream can be asked for again."""
        body = {"model": "m", "input": "p", "background": True, "stream": True}
        answer = self._http.post("/v1/responses", json=body)
        first = json.loads(event_data(answer.content)[0])
        return str(first["response"]["id"])

    def session(self) -> str:
        """A session that exists from now on."""
        body = {"model": "m", "prompt": "p", "max_tokens": 1, "prompt_cache_key": "s"}
        self._http.post("/v1/completions", json=body).raise_for_status()
        return "s"

    def request_id(self) -> str:
        """A request that can be explained."""
        answer = self._http.post("/v1/completions", json={"model": "m", "prompt": "p"})
        return str(answer.headers["x-request-id"])

    def aim(self, case: Case, *, stream: bool) -> None:
        """Make a case ask for what exists."""
        makers = {
            "model": lambda: "m",
            "response_id": self.response_id,
            "session": self.session,
            "request_id": self.request_id,
        }
        for name in case.path_parameters or {}:
            case.path_parameters[name] = makers[name]()
        if isinstance(case.body, dict):
            case.body["model"] = "m"
            if stream:
                case.body["stream"] = True


@dataclass
class Run:
    """One document against one server."""

    document: Document
    target: Target
    first_seed: int
    session: requests.Session = field(default_factory=requests.Session)

    def operation(self, operation: APIOperation[Any, Any, Any, Any], num_cases: int) -> Row:
        """Send the cases of one operation."""
        row = Row(operation.definition.raw["operationId"])
        modes = {GenerationMode.POSITIVE: num_cases}
        if self.document.has_negative and num_cases > NUM_PLAIN:
            modes = {
                GenerationMode.POSITIVE: num_cases * 2 // 3,
                GenerationMode.NEGATIVE: num_cases - num_cases * 2 // 3,
            }
        for mode, count in modes.items():
            self._cases(operation, row, mode, count)
        return row

    def _cases(
        self,
        operation: APIOperation[Any, Any, Any, Any],
        row: Row,
        mode: GenerationMode,
        count: int,
    ) -> None:
        is_positive = mode is GenerationMode.POSITIVE
        streams = self.document.events_of(row.name) is not None

        @seed(self.first_seed)
        @settings(
            max_examples=count, deadline=None, database=None, suppress_health_check=SUPPRESSED,
            phases=[Phase.generate], print_blob=False,
        )  # fmt: skip
        @given(
            case=operation.as_strategy(generation_mode=mode),
            luck=st.integers(0, 9),
            stream=st.booleans(),
        )
        def send(case: Case, luck: int, stream: bool) -> None:
            if is_positive and luck:
                self.target.aim(case, stream=stream and streams)
            self._send(case, row, is_positive=is_positive)

        with suppress(Unsatisfiable):  # Nothing in a plain path can be wrong.
            send()

    def _send(self, case: Case, row: Row, *, is_positive: bool) -> None:
        try:
            response = case.call(base_url=self.document.base, session=self.session, timeout=60)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            row.violations.append(f"no answer: {error!r}"[:500])
            row.statuses[599] += 1
            return
        row.statuses[response.status_code] += 1
        row.num_taken += not is_positive and response.status_code < 300
        is_stream = response.headers.get("content-type", [""])[0].startswith(STREAM)
        # Schemathesis would read a stream as one JSON text.
        checks = [c for c in CHECKS if not is_stream or c is not SCHEMA_CHECK]
        try:
            case.validate_response(response, checks=checks)
        except FailureGroup as group:
            row.violations += [
                f"{failure.title}: {failure.message}\n{_shown(case)}"
                for failure in group.exceptions
            ]
        if is_stream:
            self._judge(row, case, response.content)

    def _judge(self, row: Row, case: Case, body: bytes) -> None:
        """Each event of a stream, and how it ends."""
        row.num_streams += 1
        try:
            events = event_data(body)
            for data in events:
                if data == b"[DONE]":
                    continue
                row.num_events += 1
                if problem := self.document.problem(row.name, json.loads(data)):
                    row.violations.append(f"event {data[:500]!r}: {problem}\n{_shown(case)}")
        except ValueError as error:
            row.violations.append(f"{error}\n{_shown(case)}")


def _shown(case: Case) -> str:
    return f"  {case.method} {case.formatted_path} {case.query or ''} {str(case.body)[:1500]}"


@contextmanager
def server() -> Iterator[Child]:
    """A server whose model calls a tool where it may, and answers a word else."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, call_text("f", {"a": 1}), "Fine.")
        with serving(model, Path(folder) / "cache", *OPTIONS) as child:
            yield child


def share(document: Document, num_cases: int) -> dict[str, int]:
    """How many cases each operation gets: three parts with a body, one without, few else."""
    weights = {
        name: 3 if "requestBody" in operation else int(bool(operation.get("parameters")))
        for name, operation in document.operations().items()
    }
    part = num_cases / sum(weights.values())
    return {name: max(NUM_PLAIN, round(weight * part)) for name, weight in weights.items()}


def judge(
    document: Document, target: Target, args: argparse.Namespace, num_cases: int
) -> list[Row]:
    """Run all operations of a document."""
    load_all_checks()
    schema = schemathesis.openapi.from_dict(document.raw)
    run = Run(document, target, args.seed)
    only = set(args.only.split(",")) if args.only else None
    counts = share(document, num_cases)
    rows = []
    for found in schema.get_all_operations():
        operation = found.ok()
        name = operation.definition.raw["operationId"]
        if only is None or name in only:
            rows.append(run.operation(operation, counts[name]))
            print(line(document.name, rows[-1]), flush=True)
            for violation in rows[-1].violations[: args.show]:
                print(f"    {violation}", flush=True)
    return rows


COLUMNS = "{:8} {:44} {:>6} {:>6} {:>4} {:>4} {:>7} {:>7} {:>7}"
HEAD = COLUMNS.format(
    "document", "operation", "cases", "2xx", "5xx", "bad", "streams", "events", "lenient"
)


def line(document: str, row: Row) -> str:
    """A line of the table."""
    return COLUMNS.format(
        document, row.name[:44], row.num_cases, row.num_successes, row.num_server_errors,
        len(row.violations), row.num_streams, row.num_events, row.num_taken,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--openai", type=Path, help="OpenAI's openapi.json")
    parser.add_argument("--openai-cases", type=int, default=2_000)
    parser.add_argument("--only", help="operationIds, with commas")
    parser.add_argument("--show", type=int, default=20, help="violations of each operation")
    args = parser.parse_args()
    start_s = time.perf_counter()
    with server() as child:
        target = Target(child.url)
        print(HEAD)
        rows = judge(own_document(child.url), target, args, args.cases) if args.cases else []
        if args.openai:
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
