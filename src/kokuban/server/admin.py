"""For who runs the server: POST /reset_prefix_cache.

Open to every API key, and without a key only where no other machine can call.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.errors import HttpError
from kokuban.server.routes import Router
from kokuban.server.serving import Serving, serving_of

router = Router()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Forget all cached KV that no running request holds; tells how many blocks that was."""
    serving = serving_of(request)
    check_admin(serving)
    num_blocks = await serving.model.client.reset_prefix_cache()
    serving.history.note_reset(serving.clock.now())
    return Response(
        msgspec.json.encode({"forgotten_blocks": num_blocks}), media_type="application/json"
    )


def check_admin(serving: Serving) -> None:
    """Raises `HttpError` on a server that strangers can call."""
    settings = serving.settings
    if not settings.api_keys and not settings.on_loopback:
        raise HttpError(
            403,
            "this route is closed on a server that other machines can reach without a key; start "
            "it with --api-key KEY",
            code="admin_closed",
        )
