"""Which function answers which path. Starlette's routes, without its detours.

    router = Router()

    @router.get("/v1/things/{thing}")
    async def thing(request: Request, thing: str) -> Response: ...

A function takes the request and the path's parameters, all text. It reads its body itself (`body`)
and lets errors pass: `Guard` makes answers of them.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

Handler = Callable[..., Awaitable[Response]]
HandlerT = TypeVar("HandlerT", bound=Handler)


class Endpoint:
    """A function as an ASGI application: what the router calls once it knows the path."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self.handler(request, **scope["path_params"])
        await response(scope, receive, send)


class Router:
    """Collects the routes of a module.

    Args:
        include_in_schema: whether the OpenAPI document tells of them.
    """

    def __init__(self, *, include_in_schema: bool = True) -> None:
        self.routes: list[Route] = []
        self._include_in_schema = include_in_schema

    def get(self, path: str) -> Callable[[HandlerT], HandlerT]:
        return self._route("GET", path, self._include_in_schema)

    def head(self, path: str) -> Callable[[HandlerT], HandlerT]:
        """HEAD beside a GET: the document need not tell of it."""
        return self._route("HEAD", path, False)

    def post(self, path: str) -> Callable[[HandlerT], HandlerT]:
        return self._route("POST", path, self._include_in_schema)

    def delete(self, path: str) -> Callable[[HandlerT], HandlerT]:
        return self._route("DELETE", path, self._include_in_schema)

    def _route(
        self, method: str, path: str, include_in_schema: bool
    ) -> Callable[[HandlerT], HandlerT]:
        def keep(handler: HandlerT) -> HandlerT:
            route = Route(path, Endpoint(handler), include_in_schema=include_in_schema)
            route.methods = {method}  # HEAD comes with GET only where it is asked for.
            self.routes.append(route)
            return handler

        return keep
