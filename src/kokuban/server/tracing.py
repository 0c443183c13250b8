"""A span for each request, for who collects traces with OpenTelemetry.

Everything a span tells is known when its request ends, so that it is made then, with the times that
were: nothing is carried along meanwhile. Without `--otlp-traces-endpoint` nothing of OpenTelemetry
is imported.
"""

import time
from typing import TYPE_CHECKING, Any

from kokuban import __version__
from kokuban.core.errors import ConfigError
from kokuban.server.facts import facts_of, operation_of
from kokuban.server.record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CONSOLE = "console"
"""As an endpoint: spans are written to standard output."""


class Tracer:
    """Makes spans.

    Args:
        provider: where they go; shut down by `close`.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("kokuban", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER

    def trace(self, record: Record) -> None:
        """Make the span of a request that has just ended. Never fails its caller's work."""
        assert record.ended_s is not None, "a request is traced before its end"
        end_ns = time.time_ns()

        def at(moment_s: float) -> int:
            assert record.ended_s is not None
            return end_ns - int((record.ended_s - moment_s) * 1e9)

        span = self._tracer.start_span(
            f"{operation_of(record)} {record.model}",
            context=self._propagator.extract(dict(record.parent)),
            kind=self._kind,
            attributes=facts_of(record),
            start_time=at(record.started_s),
        )
        if record.first_token_s is not None:
            span.add_event("first token", timestamp=at(record.first_token_s))
        if record.finish == "error":
            from opentelemetry.trace import StatusCode

            span.set_status(StatusCode.ERROR)
        span.end(end_ns)

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


def open_tracer(endpoint: str) -> Tracer:
    """A tracer whose spans go to a collector.

    Args:
        endpoint: the URL of OTLP over HTTP, with its path, or `CONSOLE`.

    Raises:
        ConfigError: OpenTelemetry is not installed, or the endpoint is no URL.
    """
    if endpoint != CONSOLE and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"--otlp-traces-endpoint {endpoint} is no URL, such as http://localhost:4318/v1/traces"
        )
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(endpoint)
    except ImportError as error:
        raise ConfigError(
            f"traces need OpenTelemetry, which is not installed ({error.name}); "
            f"pip install 'kokuban[otel]'"
        ) from error
    resource = Resource.create({"service.name": "kokuban", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider)


def _exporter(endpoint: str) -> Any:
    if endpoint == CONSOLE:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint)
