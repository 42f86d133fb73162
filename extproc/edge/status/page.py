"""The routes of the status page: its files, its data, and the explanation of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import hdrs, web

INDEX = "index.html"
LONGEST_BODY = 1024 * 1024
"""The longest request, in bytes, that is explained: reading it takes milliseconds, in which no
decision is made."""

_DIRECTORY = Path(__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

Explain = Callable[[bytes, str, Mapping[str, str]], Mapping[str, object]]
"""Explains a body that is sent to a path with these headers."""


class Report(Protocol):
    """The source of the page's data."""

    def document(self, wanted: str, after: int) -> Mapping[str, Any]:
        """Return the state, with one model's endpoints, and the decisions after a number."""

    def ring(self, name: str) -> Mapping[str, Any] | None:
        """Return the ring of a model; None if there is no such model."""


class ToExplain(msgspec.Struct, forbid_unknown_fields=True):
    """A request that the page asks to explain."""

    body: str
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = {}


class StatusPage:
    """The page. It computes nothing unless a browser asks."""

    def __init__(self, report: Report, explain: Explain) -> None:
        self._report = report
        self._explain = explain
        self._files: dict[str, bytes] = {}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the page's routes to those of the admin port."""
        router.add_get("/", self._index)
        router.add_get("/status/state", self._state)
        router.add_get("/status/ring", self._ring)
        router.add_post("/status/explain", self._explained)
        router.add_get("/status/{name}", self._file)

    async def _index(self, _: web.Request) -> web.Response:
        return self._content(INDEX)

    async def _file(self, request: web.Request) -> web.Response:
        return self._content(request.match_info["name"])

    async def _state(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "")
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 20 else 0
        return _json(self._report.document(request.query.get("model", ""), number))

    async def _ring(self, request: web.Request) -> web.Response:
        ring = self._report.ring(request.query.get("model", ""))
        if ring is None:
            raise web.HTTPNotFound(headers=_HEADERS)
        return _json(ring)

    async def _explained(self, request: web.Request) -> web.Response:
        # A browser sends this type to another origin only after asking it, so a foreign page
        # cannot use the sidecar's CPU.
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(headers=_HEADERS)
        content = await _limited(request)
        try:
            asked = msgspec.json.decode(content, type=ToExplain)
        except msgspec.MsgspecError as error:
            return _json({"problem": str(error)}, status=400)
        return _json(self._explain(asked.body.encode(), asked.path, asked.headers))

    def _content(self, name: str) -> web.Response:
        """Return one of the page's files. Raises HTTPNotFound."""
        if not self._files:
            paths = (path for path in _DIRECTORY.iterdir() if path.suffix in _TYPES)
            self._files = {path.name: path.read_bytes() for path in paths}
        body = self._files.get(name)
        if body is None:
            raise web.HTTPNotFound(headers=_HEADERS)
        kind = _TYPES[Path(name).suffix]
        return web.Response(body=body, headers={**_HEADERS, hdrs.CONTENT_TYPE: kind})


async def _limited(request: web.Request) -> bytes:
    """Return the body. Raises HTTPRequestEntityTooLarge, and HTTPBadRequest for bad chunks."""
    content = bytearray()
    try:
        async for part in request.content.iter_any():
            content += part
            if len(content) > LONGEST_BODY:
                raise web.HTTPRequestEntityTooLarge(LONGEST_BODY, len(content), headers=_HEADERS)
    except web.RequestPayloadError:
        raise web.HTTPBadRequest(headers=_HEADERS) from None
    return bytes(content)


def _json(document: object, status: int = 200) -> web.Response:
    headers = {**_HEADERS, hdrs.CONTENT_TYPE: "application/json"}
    return web.Response(body=msgspec.json.encode(document), headers=headers, status=status)
