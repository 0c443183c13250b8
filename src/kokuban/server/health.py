"""For machines that watch: /health, /ready, /metrics, /stats, /version."""

from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kokuban import __version__
from kokuban.observe.metrics import CONTENT_TYPE
from kokuban.observe.vllm_names import with_vllm_names
from kokuban.server.errors import HttpError
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of

router = Router(KeyScope.PUBLIC)


@router.get("/health")
@router.head("/health")
async def health(request: Request) -> Response:
    """Liveness: 200 while the engine lives, however busy it is. 503: restart this process."""
    if not serving_of(request).model.client.alive():
        raise _unavailable("the engine has stopped; see the server's log", "engine_dead")
    return _json({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Readiness: 200 when a request that comes now would be taken."""
    serving = serving_of(request)
    if problem := _not_ready(serving):
        raise problem
    return _json({"status": "ready", "model": serving.info.model})


@router.get("/metrics", KeyScope.METRICS)
async def metrics(request: Request) -> Response:
    """Everything that is counted, for Prometheus."""
    serving = serving_of(request)
    text = serving.metrics.render()
    if serving.settings.vllm_metrics:
        text = with_vllm_names(text)
    return Response(text, headers={"content-type": CONTENT_TYPE})


@router.get("/stats", KeyScope.METRICS)
async def stats(request: Request) -> Response:
    """The engine's snapshot and constants, for the page."""
    serving = serving_of(request)
    facts = {
        **asdict(serving.info),
        **asdict(serving.model.client.stats()),
        "alive": serving.model.client.alive(),
        "draining": serving.drain.draining,
    }
    return _json(facts)


@router.get("/version", KeyScope.ANY)
async def version(_request: Request) -> Response:
    """The version of Kokuban."""
    return _json({"version": __version__})


def _not_ready(serving: Serving) -> HttpError | None:
    client = serving.model.client
    if not client.alive():
        return _unavailable("the engine has stopped; see the server's log", "engine_dead")
    if not client.ready():
        return _unavailable("the engine is being started again", "engine_restarting")
    if serving.drain.draining:
        return _unavailable("this server is shutting down", "shutting_down")
    stats = client.stats()
    if stats.retry_after_s or stats.waiting >= serving.settings.max_waiting_requests:
        return _unavailable("the waiting queue is full", "queue_full")
    return None


def _unavailable(message: str, code: str) -> HttpError:
    return HttpError(503, message, code=code, headers={"retry-after": "1"})


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
