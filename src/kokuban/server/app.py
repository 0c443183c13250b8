"""Puts the HTTP side together: routes, guard, error envelope, description.

    app = create_app(model)            # model: what engine.build.build_engine returns
    app.state.serving.drain            # ends running requests in time

The application owns no engine: whoever made the engine closes it.
"""

from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from kokuban import __version__
from kokuban.observe.clock import Clock
from kokuban.server import (
    admin,
    chat,
    completions,
    explain,
    health,
    kv_events,
    models,
    page,
    sessions,
    tokenize,
)
from kokuban.server.description import describe
from kokuban.server.errors import failure
from kokuban.server.guard import Guard
from kokuban.server.serving import new_serving
from kokuban.server.settings import ServedModel, ServerSettings

MODULES = (chat, completions, models, tokenize, sessions, health, explain, admin, kv_events, page)
"""Each has a `router`."""


def create_app(
    model: ServedModel, settings: ServerSettings | None = None, clock: Clock | None = None
) -> FastAPI:
    """An ASGI application that serves one model.

    Args:
        model: an engine with its tokenizer and chat template.
        settings: loopback without a key by default.
        clock: for times in log and metrics; the system's by default.
    """
    settings = settings or ServerSettings()
    serving = new_serving(model, settings, clock)
    middleware: list[Middleware] = []
    if settings.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["authorization", "content-type", "x-request-id", "x-session-id"],
                expose_headers=["x-request-id", "retry-after"],
                allow_credentials="*" not in settings.cors_origins,
            )
        )
    middleware.append(Middleware(Guard, settings=settings, metrics=serving.metrics))
    app = FastAPI(
        title="Kokuban",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware,
        exception_handlers={HTTPException: _enveloped},
    )
    app.state.serving = serving
    for module in MODULES:
        app.include_router(module.router)
    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        return describe(plain_openapi())

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def _enveloped(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in our envelope."""
    return failure(error).response()
