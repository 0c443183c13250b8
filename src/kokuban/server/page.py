"""The page at `/`: a chat and a view of the block pool. Plain files, nothing from elsewhere."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope

_STATIC = Path(__file__).parent / "static"
_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

router = Router(KeyScope.PUBLIC, include_in_schema=False)


def _file(name: str) -> Response:
    path = _STATIC / name
    kind = f"{_KINDS[path.suffix]}; charset=utf-8"
    return Response(path.read_bytes(), headers={**_HEADERS, "content-type": kind})


@router.get("/")
@router.head("/")
async def page(_request: Request) -> Response:
    return _file("page.html")


@router.get("/static/page.css")
async def style(_request: Request) -> Response:
    return _file("page.css")


@router.get("/static/page.js")
async def script(_request: Request) -> Response:
    return _file("page.js")


@router.get("/static/icon.svg")
@router.get("/favicon.ico")
async def icon(_request: Request) -> Response:
    return _file("icon.svg")
