"""The HTTP server of one stand-in replica: vLLM's paths over a simulated engine."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from aiohttp import web

from extproc.lab.stand_ins import lora_http, openai_shapes, vllm_metrics
from extproc.lab.stand_ins.anthropic_http import AnthropicRoutes
from extproc.lab.stand_ins.engine_task import EngineTask
from extproc.lab.stand_ins.generate import Generations
from extproc.lab.stand_ins.generation_request import GenerationRequest
from extproc.lab.stand_ins.http_responses import error_response, json_response
from extproc.lab.stand_ins.openai_requests import chat_request, completion_request
from extproc.lab.stand_ins.openai_shapes import CompletionResponse
from extproc.lab.stand_ins.pooling_http import PoolingRoutes
from extproc.lab.stand_ins.request_counter import RequestCounter
from extproc.lab.stand_ins.request_error import RequestError
from extproc.lab.stand_ins.responses_http import ResponsesRoutes
from extproc.lab.stand_ins.served_models import ServedModels
from extproc.lab.stand_ins.vllm_metrics import MetricsStyle

MAX_MODEL_LEN = 16_384
"""Default for the most tokens of prompt and output together; the value of the published runs."""

MAX_BODY_BYTES = 256 * 2**20

BODY_BYTES = "x-stand-in-body-bytes"
BODY_MD5 = "x-stand-in-body-md5"
PORT = "x-stand-in-port"
"""Response headers: the size and the hash of the received body, and the port of the replica.
Responses to other methods than POST have only the port."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StandIn:
    """One replica behind one port."""

    def __init__(
        self,
        port: int,
        engine: EngineTask,
        models: ServedModels,
        max_model_len: int,
        style: MetricsStyle,
    ) -> None:
        self.port = port
        self._max_model_len = max_model_len
        self.engine = engine
        self._models = models
        self._style = style
        self._requests_held = RequestCounter()
        self._generating = Generations(engine, models, max_model_len)
        self._started = int(time.time())

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(middlewares=[self._receive], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/load", self._load)
        app.router.add_get("/stand-in/requests", self._requests)
        app.router.add_post("/stand-in/reset-cache", self._reset_cache)
        lora_http.LoraRoutes(self._models, self.engine).add_to(app)
        ResponsesRoutes(self._generating, self._diagnostics).add_to(app)
        AnthropicRoutes(self._generating, self._diagnostics).add_to(app)
        PoolingRoutes(self._models, self._max_model_len).add_to(app)
        app.router.add_post("/{path:.*}", self._anything)
        return app

    @web.middleware
    async def _receive(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count a POST from its headers to the end of its response."""
        if request.method != "POST":
            response = await handler(request)
            response.headers[PORT] = str(self.port)
            return response
        with nullcontext() if _is_of_an_operator(request.path) else self._requests_held.held():
            try:
                return await self._answer(request, handler)
            except ConnectionResetError:
                # The client has disconnected. Cancel, so that aiohttp does not log an error.
                raise asyncio.CancelledError from None

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Send the response here instead of in aiohttp, so that the count lasts until its end."""
        body = await request.read()
        response = await handler(request)
        if not response.prepared:
            response.headers.update(self._diagnostics(body))
            await response.prepare(request)
        await response.write_eof()
        return response

    def _diagnostics(self, body: bytes) -> dict[str, str]:
        return {
            PORT: str(self.port),
            BODY_BYTES: str(len(body)),
            BODY_MD5: hashlib.md5(body, usedforsecurity=False).hexdigest(),
        }

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat_request, chat=True)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, completion_request, chat=False)

    async def _generate(
        self, request: web.Request, parse: Callable[[bytes], GenerationRequest], chat: bool
    ) -> web.StreamResponse:
        body = await request.read()
        generating = self._generating
        try:
            run = generating.start(parse(body))
        except RequestError as refusal:
            return error_response(refusal)
        options = run.wanted.include_usage, run.wanted.limited
        shape = CompletionResponse(chat, run.model, run.number, run.created, *options)
        # vLLM adds no load report in its other APIs, in streams and in errors.
        report = generating.load_report
        return await generating.respond(request, run, shape, self._diagnostics(body), report)

    async def _anything(self, request: web.Request) -> web.StreamResponse:
        shape = {"object": "stand-in", "path": request.path, "bytes": len(await request.read())}
        return web.json_response(shape)

    async def _list_models(self, _: web.Request) -> web.StreamResponse:
        return json_response(openai_shapes.models(self._models, self._max_model_len, self._started))

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=vllm_metrics.exposition(
                self.engine.replica, self._models.name, self._style, self.engine.gauge
            ),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"server_load": self._requests_held.in_flight})

    async def _requests(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._requests_held.counts())

    async def _reset_cache(self, _: web.Request) -> web.StreamResponse:
        self.engine.replica.reset()
        self._requests_held.reset()
        return web.json_response(self._requests_held.counts())


def _is_of_an_operator(path: str) -> bool:
    """Return True for a POST that no router forwards, which is not counted.

    These are requests to control the stand-in and to load adapters. vLLM's /load does not count
    the latter either.
    """
    return path.startswith("/stand-in/") or path in (lora_http.LOAD, lora_http.UNLOAD)
