"""Which function answers which path. Starlette's routes, without its detours.

    router = Router(KeyScope.INFER)

    @router.get("/v1/things/{thing}")
    async def thing(request: Request, thing: str) -> Response: ...

A function takes the request and the path's parameters, all text. It reads its body itself (`body`)
and lets errors pass: `Guard` makes answers of them.

A router says what right its routes want; a route may say another. There is no default, so that
nobody opens a route without meaning to.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kokuban.core.errors import Overloaded
from kokuban.engine.client import EngineClient
from kokuban.server.access import check_scope
from kokuban.server.scopes import KeyScope

Handler = Callable[..., Awaitable[Response]]
HandlerT = TypeVar("HandlerT", bound=Handler)


class Endpoint:
    """A function as an ASGI application: what the router calls once it knows the path.

    Args:
        handler: the function.
        scope: what the caller must be allowed to do.
        path: with its parameters' names, for the log.
        counts: whether a request is one of those of which a key may send so many.
        queues: whether a request is refused before anything of it is read while the queue is full.
    """

    def __init__(
        self, handler: Handler, scope: KeyScope, path: str, *, counts: bool, queues: bool
    ) -> None:
        self.handler = handler
        self.scope = scope
        self.path = path
        self.counts = counts
        self.queues = queues

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        state["route"] = self.path
        check_scope(state["caller"], self.scope)
        serving = scope["app"].state.serving
        if self.queues:
            _check_queue(serving.model.client)
        if self.counts:
            with serving.quotas.spend(state["caller"]) as place:
                state["account"], state["place"] = place.account, place
                await self._answer(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self.handler(request, **scope["path_params"])
        await response(scope, receive, send)


class Router:
    """Collects the routes of a module.

    Args:
        scope: what its routes want of a caller, where they say nothing else.
        include_in_schema: whether the OpenAPI document tells of them.
    """

    def __init__(self, scope: KeyScope, *, include_in_schema: bool = True) -> None:
        self.routes: list[Route] = []
        self._scope = scope
        self._include_in_schema = include_in_schema

    def get(self, path: str, scope: KeyScope | None = None) -> Callable[[HandlerT], HandlerT]:
        return self._route("GET", path, scope, self._include_in_schema)

    def head(self, path: str, scope: KeyScope | None = None) -> Callable[[HandlerT], HandlerT]:
        """HEAD beside a GET: the document need not tell of it."""
        return self._route("HEAD", path, scope, False)

    def post(
        self, path: str, *, queues: bool = False, frees: bool = False
    ) -> Callable[[HandlerT], HandlerT]:
        """A POST of somebody who may infer counts, unless it frees what others took."""
        counts = self._scope is KeyScope.INFER and not frees
        return self._route(
            "POST", path, None, self._include_in_schema, counts=counts, queues=queues
        )

    def delete(self, path: str, scope: KeyScope | None = None) -> Callable[[HandlerT], HandlerT]:
        return self._route("DELETE", path, scope, self._include_in_schema)

    def _route(
        self,
        method: str,
        path: str,
        scope: KeyScope | None,
        include_in_schema: bool,
        *,
        counts: bool = False,
        queues: bool = False,
    ) -> Callable[[HandlerT], HandlerT]:
        def keep(handler: HandlerT) -> HandlerT:
            wanted = scope or self._scope
            endpoint = Endpoint(handler, wanted, path, counts=counts, queues=queues)
            route = Route(path, endpoint, include_in_schema=include_in_schema)
            route.methods = {method}  # HEAD comes with GET only where it is asked for.
            self.routes.append(route)
            return handler

        return keep


def _check_queue(client: EngineClient) -> None:
    """Raises `Overloaded` while the engine would refuse; it costs next to nothing to be told so."""
    retry_after_s = client.stats().retry_after_s
    if retry_after_s:
        raise Overloaded(
            f"the queue is full; try again in {retry_after_s} s", retry_after_s=retry_after_s
        )


def public_paths(routes: Iterable[Route]) -> frozenset[str]:
    """Paths that answer without a key."""
    return frozenset(
        route.path
        for route in routes
        if isinstance(route.endpoint, Endpoint) and route.endpoint.scope is KeyScope.PUBLIC
    )
