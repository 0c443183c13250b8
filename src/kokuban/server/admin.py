"""For who runs the server: POST /reset_prefix_cache."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import serving_of

router = Router(KeyScope.ADMIN)


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached KV that no running request holds; tells how many blocks that was."""
    serving = serving_of(request)
    num_blocks = await serving.model.client.reset_prefix_cache()
    serving.history.note_reset(serving.clock.now())
    return Response(
        msgspec.json.encode({"forgotten_blocks": num_blocks}), media_type="application/json"
    )
