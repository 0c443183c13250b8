"""The page at `/`: a chat and a view of the block pool. Plain files, nothing from elsewhere."""

from pathlib import Path

from fastapi import APIRouter, Response

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

router = APIRouter(include_in_schema=False)


def _file(name: str) -> Response:
    path = _STATIC / name
    kind = f"{_KINDS[path.suffix]}; charset=utf-8"
    return Response(path.read_bytes(), headers={**_HEADERS, "content-type": kind})


@router.get("/")
@router.head("/")
async def page() -> Response:
    return _file("page.html")


@router.get("/static/page.css")
async def style() -> Response:
    return _file("page.css")


@router.get("/static/page.js")
async def script() -> Response:
    return _file("page.js")


@router.get("/static/icon.svg")
@router.get("/favicon.ico")
async def icon() -> Response:
    return _file("icon.svg")
