"""Puts the HTTP side together: routes, guard, error envelope, description.

    app = create_app(model)            # model: what engine.build.build_engine returns
    app.state.serving.drain            # ends running requests in time
    app.state.later.load()             # the routes that are slow to import; else a request does it

The application owns no engine: whoever made the engine closes it.
"""

import asyncio
import threading

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from kokuban.observe.clock import Clock
from kokuban.server import health, models, page
from kokuban.server.envelopes import error_response
from kokuban.server.errors import failure
from kokuban.server.guard import Guard
from kokuban.server.routes import public_paths
from kokuban.server.serving import new_serving
from kokuban.server.settings import ServedModel, ServerSettings

FIRST_MODULES = (models, health, page)
"""Each has a `router`. `faces` has the others, which come later."""

EXPOSED_HEADERS = (
    "x-request-id",
    "request-id",
    "retry-after",
    "x-kokuban-warning",
    *(
        f"x-ratelimit-{what}-{kind}"
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)
"""What a page of another origin may read of an answer."""


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
    routes = [route for module in FIRST_MODULES for route in module.router.routes]
    guard = Middleware(
        Guard,
        settings=settings,
        keys=serving.keys,
        public=public_paths(routes),
        metrics=serving.metrics,
    )
    app = Starlette(
        routes=routes,
        middleware=[*middleware, guard],
        exception_handlers={HTTPException: _enveloped},
    )
    app.router.redirect_slashes = False
    app.state.serving = serving
    app.state.later = app.router.default = Later(app)
    return app


class Later:
    """Stands for the routes of `faces` until they are imported, which a start does not wait for."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._one_at_a_time = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that none of the first routes takes."""
        await asyncio.to_thread(self.load)
        await self._app.router(scope, receive, send)

    def load(self) -> None:
        """Add the routes of `faces`, on any thread; does nothing the second time."""
        with self._one_at_a_time:
            router = self._app.router
            if router.default is self:
                from kokuban.server.faces import add_faces

                add_faces(self._app)
                router.default = router.not_found


def _cors(settings: ServerSettings) -> Middleware:
    from starlette.middleware.cors import CORSMiddleware

    return Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors_origins),
        allow_methods=["GET", "POST", "DELETE"],
        # Clients in browsers send headers of their own, such as X-Stainless-Lang. With a key in a
        # header nothing is let in by naming them here.
        allow_headers=["*"],
        expose_headers=list(EXPOSED_HEADERS),
        allow_credentials="*" not in settings.cors_origins,
    )


async def _enveloped(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the envelope of the path's API."""
    found = failure(error)
    if found.status == 404 and (path := _path_meant(request)):
        found.body.message = f"there is nothing at this path; did you mean {path}?"
    if found.status == 405:
        found.headers.pop("Allow", None)
        found.headers["allow"] = ", ".join(_methods_at(request))
    return error_response(found, request.scope)


def _path_meant(request: Request) -> str | None:
    """The path that a client would have asked whose base URL had /v1 at its end, or had it not."""
    path: str = request.scope["path"]
    meant = path.removeprefix("/v1") if path.startswith("/v1/") else f"/v1{path}"
    fitting = _routes_at(request, meant)
    return fitting[0].path if fitting else None


def _methods_at(request: Request) -> list[str]:
    """All that the path takes; the router knows only those of the first route that fits."""
    fitting = _routes_at(request, request.scope["path"])
    return sorted({method for route in fitting for method in route.methods or ()})


def _routes_at(request: Request, path: str) -> list[Route]:
    """The routes of a path, whatever the method."""
    scope = {**request.scope, "path": path}
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    return [route for route in routes if route.matches(scope)[0] is not Match.NONE]
