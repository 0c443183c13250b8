"""GET /v1/models and /v1/models/{model}."""

from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.openai_responses import ModelCard, ModelList, encode
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of

router = Router(KeyScope.INFER)


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The one model of this server, once for each of its names."""
    serving = serving_of(request)
    cards = ModelList(data=[_card(serving, name) for name in serving.model_names])
    return Response(encode(cards), media_type="application/json")


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> Response:
    """One model by its name, which may hold slashes."""
    serving = serving_of(request)
    serving.check_model(model)
    return Response(encode(_card(serving, model)), media_type="application/json")


def _card(serving: Serving, name: str) -> ModelCard:
    info = serving.info
    return ModelCard(
        id=name, created=serving.created, max_model_len=info.max_context_tokens, root=info.model
    )
