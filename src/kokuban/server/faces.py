"""The routes that a server need not have to listen: all that read a body, and what explains them.

Importing this module takes as long as packing a small model. So nothing but `app.Later` imports it,
when the server listens already or when the first request for one of these routes has come.
"""

import logging

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kokuban.core.errors import ModelError
from kokuban.server import (
    admin,
    chat,
    completions,
    embeddings,
    explain,
    kv_events,
    sessions,
    tokenize,
)
from kokuban.server.embedding_models import EmbeddingRequest
from kokuban.server.messages import routes as messages
from kokuban.server.messages.models import MessagesRequest
from kokuban.server.openai_models import ChatRequest, CompletionRequest
from kokuban.server.responses import routes as responses
from kokuban.server.responses.request import ResponseRequest
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of

_log = logging.getLogger(__name__)

MODULES = (
    chat,
    completions,
    responses,
    messages,
    embeddings,
    tokenize,
    sessions,
    explain,
    admin,
    kv_events,
)
"""Each has a `router`."""


def add_faces(app: Starlette) -> None:
    """Give an application these routes, and the document of all that it has."""
    _build_validators()
    _compile_template(app.state.serving)
    app.state.responses = responses.new_kept(app.state.serving)
    routes = [route for module in MODULES for route in module.router.routes]
    described = [route for route in (*app.routes, *routes) if isinstance(route, Route)]
    app.router.routes.extend([*routes, *_description(described).routes])


def _build_validators() -> None:
    """Those of the usual bodies, so that no first request has to; takes some 30 ms, once."""
    bodies = (ChatRequest, CompletionRequest, ResponseRequest, EmbeddingRequest, MessagesRequest)
    for body in bodies:
        body.model_rebuild()


def _compile_template(serving: Serving) -> None:
    """The model's, so that no first chat has to; one that is wrong takes chat away, no more."""
    try:
        serving.chat_template.load()
    except ModelError as error:
        _log.error("%s; every chat is refused, completions are not", error)


def _description(routes: list[Route]) -> Router:
    """The route of the OpenAPI document, which is made when somebody first asks for it."""
    router = Router(KeyScope.ANY, include_in_schema=False)
    made: list[bytes] = []

    @router.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        if not made:
            from kokuban.server.description import Served, describe

            serving = serving_of(request)
            served = Served(serving.model_names, serving.info.vocab_size)
            made.append(msgspec.json.encode(describe(routes, served)))
        return Response(made[0], media_type="application/json")

    return router
