"""vLLM's paths to load and unload adapters at run time.

A real vLLM has them only with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, a stand-in whenever LoRA is on.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from extproc.lab.stand_ins.engine_task import EngineTask
from extproc.lab.stand_ins.http_responses import error_response
from extproc.lab.stand_ins.request_error import RequestError
from extproc.lab.stand_ins.served_models import ServedModels

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"


class LoraRoutes:
    """The routes of one replica."""

    def __init__(self, models: ServedModels, engine: EngineTask) -> None:
        self._models = models
        self._engine = engine

    def add_to(self, app: web.Application) -> None:
        """Add the routes. Without LoRA they answer 404, because other paths answer 200."""
        on = self._engine.replica.profile.max_loras > 0
        app.router.add_post(LOAD, self._load if on else _not_found)
        app.router.add_post(UNLOAD, self._unload if on else _not_found)

    async def _load(self, request: web.Request) -> web.Response:
        try:
            document = _document(await request.read())
            name, path = _text(document, "lora_name"), _text(document, "lora_path")
            self._models.check_new(name, path, document.get("load_inplace") is True)
        except RequestError as refusal:
            return error_response(refusal)
        # Load the adapter before it is served, so that its first request finds it loaded.
        await self._engine.load_adapter(name)
        self._models.add(name, path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        """Stop serving an adapter. As in vLLM, its weights stay until others need the room."""
        try:
            name = _text(_document(await request.read()), "lora_name")
            self._models.remove(name)
        except RequestError as refusal:
            return error_response(refusal)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


async def _not_found(_: web.Request) -> web.Response:
    """Answer 404 in the shape of FastAPI, which handles unknown paths of a real vLLM."""
    return web.json_response({"detail": "Not Found"}, status=404)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "Bad Request", f"1 validation error:\n  {error}") from None
    if not isinstance(document, dict):
        raise RequestError(400, "Bad Request", "1 validation error:\n  not a JSON object")
    return document


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if isinstance(value, str):
        return value
    message = f"1 validation error:\n  body.{field}: must be given, and be a string"
    raise RequestError(400, "Bad Request", message, f"body.{field}")
