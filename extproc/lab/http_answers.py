"""Answers of a stand-in that are JSON."""

from __future__ import annotations

from aiohttp import web

from extproc.lab import openai_shapes
from extproc.lab.refusal import Refusal


def json_answer(body: bytes, status: int = 200) -> web.Response:
    """Of a body that is JSON already."""
    return web.Response(body=body, status=status, content_type="application/json")


def refused(refusal: Refusal) -> web.Response:
    """In OpenAI's error shape."""
    body = openai_shapes.error(refusal.status, refusal.kind, str(refusal), refusal.param)
    return json_answer(body, refusal.status)
