"""Sends the requests of one document to a server, and judges the answers. See `conformance`."""

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests
import schemathesis
from benchmarks.conformance_aim import FEW, aim, plain
from benchmarks.conformance_documents import KEY_HEADER, STREAM, Document, event_data, is_whole
from benchmarks.conformance_openai import leave_out
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.engine import ConjectureRunner
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks as openapi_checks

Operation = APIOperation[Any, Any, Any, Any]
SCHEMA_CHECK = openapi_checks.response_schema_conformance
CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    SCHEMA_CHECK,
]
SUPPRESSED = list(HealthCheck)
# Hypothesis tries what it has made once more with a part of it repeated. For bodies of this size
# that costs a third of the time, and makes nearly the same requests.
ConjectureRunner.generate_mutations_from = lambda _runner, _data: None  # type: ignore[method-assign]
TIMEOUT_S = 300


@dataclass
class Row:
    """What was found of one operation."""

    name: str
    statuses: Counter[int] = field(default_factory=Counter)
    num_allowed: int = 0
    """Cases that the document allows."""

    num_answered: int = 0
    """Of these: those that succeeded."""

    num_events: int = 0
    num_streams: int = 0
    num_lenient: int = 0
    """Of the requests that the document does not allow: those that succeeded."""

    refusals: Counter[str] = field(default_factory=Counter)
    """Why requests that the document allows were refused, without numbers and names."""

    violations: list[str] = field(default_factory=list)

    @property
    def num_cases(self) -> int:
        return self.statuses.total()

    @property
    def num_server_errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 500)


class Target:
    """The server, and what exists on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_ours = True
        """Whether requests are made from our own document."""

        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, headers=KEY_HEADER)
        self._kept: str | None = None

    def response_id(self) -> str:
        """A new response, of which the stream can be asked for again."""
        body = {"model": "m", "input": "p", "background": True, "stream": True}
        answer = self._http.post("/v1/responses", json=body)
        first = json.loads(event_data(answer.content)[0])
        return str(first["response"]["id"])

    def kept_id(self) -> str:
        """A response that a conversation can go on from."""
        if self._kept is None:
            answer = self._http.post("/v1/responses", json={"input": "p"})
            self._kept = str(answer.json()["id"])
        return self._kept

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
        if case.query:
            case.query.pop("after", None)
            if "limit" in case.query and not self.is_ours:
                case.query["limit"] = FEW
        if not isinstance(case.body, dict):
            return
        case.body = plain(case.body)
        if not self.is_ours:
            leave_out(case.path, case.body)
        aim(case.body, stream=stream)
        if case.body.get("previous_response_id") is not None:
            case.body["previous_response_id"] = self.kept_id()


@dataclass
class Run:
    """One document against one server."""

    document: Document
    target: Target
    first_seed: int
    session: requests.Session = field(default_factory=requests.Session)

    def round(self, operation: Operation, row: Row, num_cases: int, number: int) -> None:
        """Send some cases of one operation: of four, one that the document does not allow.

        Args:
            number: of the round; another one makes other cases.
        """
        num_refused = num_cases // 4 if self.document.has_negative else 0
        parts = {
            GenerationMode.POSITIVE: num_cases - num_refused,
            GenerationMode.NEGATIVE: num_refused,
        }
        for mode, count in parts.items():
            if count:
                self._cases(operation, row, mode, count, self.first_seed + number)

    def _cases(
        self, operation: Operation, row: Row, mode: GenerationMode, count: int, first: int
    ) -> None:
        is_positive = mode is GenerationMode.POSITIVE
        streams = self.document.events_of(row.name) is not None

        @seed(first)
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
            response = case.call(
                base_url=self.document.base,
                session=self.session,
                timeout=TIMEOUT_S,
                headers=KEY_HEADER,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            row.violations.append(f"no answer: {error!r}"[:500])
            row.statuses[599] += 1
            return
        row.statuses[response.status_code] += 1
        is_success = response.status_code < 300
        row.num_allowed += is_positive
        row.num_answered += is_positive and is_success
        if not is_positive and is_success and (wrong := self._wrong(row.name, case.body)):
            row.num_lenient += 1
            row.violations.append(f"answered, though no schema allows it: {wrong}\n{_shown(case)}")
        if is_positive and response.status_code >= 400:
            row.refusals[reason(response.status_code, response.content)] += 1
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

    def _wrong(self, operation: str, body: Any) -> str | None:
        """What a body has that is not only more than `narrowed` lets through."""
        return self.document.wrong(operation, body) if isinstance(body, dict) else "no object"

    def _judge(self, row: Row, case: Case, body: bytes) -> None:
        """Each event of a stream, and how it ends."""
        row.num_streams += 1
        try:
            events = event_data(body)
            if not is_whole(events):
                row.violations.append(f"a stream ends with {events[-1][:200]!r}\n{_shown(case)}")
            for data in events:
                if data == b"[DONE]":
                    continue
                row.num_events += 1
                if problem := self.document.problem(row.name, json.loads(data)):
                    row.violations.append(f"event {data[:500]!r}: {problem}\n{_shown(case)}")
        except ValueError as error:
            row.violations.append(f"{error}\n{_shown(case)}")


def reason(status: int, body: bytes) -> str:
    """Why a request was refused, such that the same reason is the same text."""
    try:
        error = json.loads(body)["error"]
    except ValueError:
        return f"{status} {body[:80]!r}"
    words = re.sub(r"'[^']*'|\d+", "_", f"{error.get('param')}: {error['message']}")
    return f"{status} {words[:160]}"


def _shown(case: Case) -> str:
    return f"  {case.method} {case.formatted_path} {case.query or ''} {str(case.body)[:1500]}"
