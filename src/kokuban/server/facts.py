"""What is told of a request to machines, under the names of OpenTelemetry's conventions.

One table for the JSON log line and for the span: counts, times and ids, never a text. Names that
begin with `kokuban.` are ours, for what the conventions have no name for.
"""

from typing import TYPE_CHECKING

from kokuban.server.key_file import NAMED

if TYPE_CHECKING:
    from kokuban.server.record import Record

Fact = str | int | float | list[str]

_OPERATIONS = {"completions": "text_completion", "embeddings": "embeddings"}
"""Of each API; all others are conversations."""


def facts_of(record: "Record") -> dict[str, Fact]:
    """All that is known; what is not known is left out. Times are seconds."""
    usage = record.usage()
    ended_s = record.clock.now() if record.ended_s is None else record.ended_s
    found: dict[str, Fact | None] = {
        "gen_ai.operation.name": operation_of(record),
        "gen_ai.provider.name": "kokuban",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.request.choice.count": record.n,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens if usage else None,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.response.finish_reasons": sorted(record.finishes) or None,
        "gen_ai.server.time_to_first_token": record.ttft_s,
        "gen_ai.server.time_per_output_token": record.tpot_s,
        "gen_ai.server.request.duration": ended_s - record.started_s,
        "error.type": record.finish if record.finish in ("error", "abort", "refused") else None,
        "kokuban.api": record.api,
        "kokuban.finish": record.finish,
        "kokuban.client_id": None if record.client_id == "-" else record.client_id,
        "kokuban.tenant": _named(record.tenant),
    }
    if usage is not None:
        found["kokuban.queue_s"] = usage.queue_s
        found["kokuban.prefill_s"] = usage.prefill_s
        found["kokuban.decode_s"] = usage.decode_s
        found["kokuban.preemptions"] = usage.preemptions
    return {name: value for name, value in found.items() if value is not None}


def _named(tenant: str) -> str | None:
    """A tenant by the name that the operator gave. That of a key without one is made of the key,
    and would let who reads the log try keys."""
    return tenant.removeprefix(NAMED) if tenant.startswith(NAMED) else None


def operation_of(record: "Record") -> str:
    """The conventions' name of what was asked for."""
    return _OPERATIONS.get(record.api, "chat")
