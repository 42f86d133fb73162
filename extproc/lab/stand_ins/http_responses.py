"""JSON responses of a stand-in."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from extproc.lab.stand_ins import openai_shapes
from extproc.lab.stand_ins.request_error import RequestError


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return a response with a body of encoded JSON."""
    return web.Response(body=body, status=status, content_type="application/json")


def json_document(document: Mapping[str, object]) -> web.Response:
    """Return a response with this JSON object."""
    return json_response(json.dumps(document).encode())


def error_response(refusal: RequestError) -> web.Response:
    """Return the response to an invalid request, in OpenAI's error shape."""
    body = openai_shapes.error(refusal.status, refusal.kind, str(refusal), refusal.param)
    return json_response(body, refusal.status)
