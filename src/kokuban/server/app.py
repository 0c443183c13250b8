"""Puts the HTTP side together: routes, guard, error envelope, description.

    app = create_app(model)            # model: what engine.build.build_engine returns
    app.state.serving.drain            # ends running requests in time

The application owns no engine: whoever made the engine closes it.
"""

from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
from kokuban.server.envelopes import error_response
from kokuban.server.errors import failure
from kokuban.server.guard import Guard
from kokuban.server.routes import Handler
from kokuban.server.serving import new_serving
from kokuban.server.settings import ServedModel, ServerSettings

MODULES = (chat, completions, models, tokenize, sessions, health, explain, admin, kv_events, page)
"""Each has a `router`."""

ANTHROPIC_HEADERS = (
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
)
"""What Anthropic's client sends from a web page."""


def create_app(
    model: ServedModel, settings: ServerSettings | None = None, clock: Clock | None = None
) -> Starlette:
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
        middleware.append(_cors(settings))
    middleware.append(Middleware(Guard, settings=settings, metrics=serving.metrics))
    routes = [route for module in MODULES for route in module.router.routes]
    app = Starlette(
        routes=[*routes, Route("/openapi.json", _describe(routes), include_in_schema=False)],
        middleware=middleware,
        exception_handlers={HTTPException: _enveloped},
    )
    app.router.redirect_slashes = False
    app.state.serving = serving
    return app


def _cors(settings: ServerSettings) -> Middleware:
    from starlette.middleware.cors import CORSMiddleware

    return Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=[
            "authorization",
            "content-type",
            "x-request-id",
            "x-session-id",
            *ANTHROPIC_HEADERS,
        ],
        expose_headers=["x-request-id", "request-id", "retry-after"],
        allow_credentials="*" not in settings.cors_origins,
    )


def _describe(routes: Sequence[Route]) -> Handler:
    """The route of the OpenAPI document, which is made when somebody first asks for it."""
    made: list[bytes] = []

    async def openapi(request: Request) -> Response:
        if not made:
            from kokuban.server.description import describe

            made.append(msgspec.json.encode(describe(routes)))
        return Response(made[0], media_type="application/json")

    return openapi


async def _enveloped(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the envelope of the path's API."""
    return error_response(failure(error), request.scope)
