"""The HTTP side of one stand-in replica: vLLM's paths, answered from a simulated engine."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from itertools import count

from aiohttp import web

from extproc.lab import openai_shapes, tokens, vllm_metrics
from extproc.lab.engine_task import EngineTask, Generation
from extproc.lab.openai_requests import (
    BadRequest,
    GenerationRequest,
    chat_request,
    completion_request,
)
from extproc.lab.openai_shapes import Answer
from extproc.lab.tally import Tally

MAX_MODEL_LEN = 16_384
"""The longest prompt and output together, in tokens, by default; the published runs' value."""

MAX_BODY_BYTES = 256 * 2**20

BODY_BYTES = "x-stand-in-body-bytes"
BODY_MD5 = "x-stand-in-body-md5"
PORT = "x-stand-in-port"
"""Headers of every answer to a POST: how much of which body arrived where."""

_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StandIn:
    """One replica behind one port. No `models`: it serves whatever model a request names."""

    def __init__(
        self,
        port: int,
        engine: EngineTask,
        models: Sequence[str] = (),
        max_model_len: int = MAX_MODEL_LEN,
    ) -> None:
        self.port = port
        self._max_model_len = max_model_len
        self.engine = engine
        self._models = models
        self._name = models[0] if models else "stand-in"
        self._tally = Tally()
        self._numbers = count(1)

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._receive], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/load", self._load)
        app.router.add_get("/stand-in/requests", self._requests)
        app.router.add_post("/stand-in/reset-cache", self._reset_cache)
        app.router.add_post("/{path:.*}", self._anything)
        return app

    @web.middleware
    async def _receive(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Counts a POST from its headers to the end of its answer."""
        if request.method != "POST":
            return await handler(request)
        # What is asked of the stand-in itself would blur the counts it is asked about.
        own = request.path.startswith("/stand-in/")
        with nullcontext() if own else self._tally.held():
            try:
                return await self._answer(request, handler)
            except ConnectionResetError:
                # The client has gone: no fault of this server, so nothing to be logged.
                raise asyncio.CancelledError from None

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Sends the answer, and not aiohttp does, so that the count holds until it is out."""
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
        try:
            wanted = parse(body)
            model = wanted.model or self._name
            if self._models and model not in self._models:
                message = f"The model `{model}` does not exist."
                return _error(404, "NotFoundError", message, "model")
            generation, words = self._submit(wanted)
        except BadRequest as refusal:
            return _error(400, "BadRequestError", str(refusal))
        answer = Answer(chat, model, next(self._numbers), int(time.time()))
        try:
            if wanted.stream:
                response = web.StreamResponse(headers=_EVENT_STREAM | self._diagnostics(body))
                # The headers go out before there is any token, as vLLM's do.
                await response.prepare(request)
                await _stream(response, wanted, generation, answer, words)
                return response
            await generation.all()
            return _json(answer.whole(words, _usage(wanted, generation)))
        finally:
            # Also when the handler is cancelled, because the client has gone.
            self.engine.abort(generation)

    def _submit(self, wanted: GenerationRequest) -> tuple[Generation, list[bytes]]:
        prompt_tokens = tokens.count(wanted.prompt)
        if prompt_tokens + wanted.max_tokens > self._max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {self._max_model_len} tokens. However, "
                f"you requested {wanted.max_tokens} output tokens and your prompt contains "
                f"{prompt_tokens} input tokens."
            )
        words = tokens.answer(wanted.prompt, wanted.max_tokens)
        blocks = tokens.block_ids(wanted.prompt + b"".join(words))
        try:
            return self.engine.submit(prompt_tokens, wanted.max_tokens, blocks), words
        except ValueError as error:
            raise BadRequest(str(error)) from None

    async def _anything(self, request: web.Request) -> web.StreamResponse:
        shape = {"object": "stand-in", "path": request.path, "bytes": len(await request.read())}
        return web.json_response(shape)

    async def _list_models(self, _: web.Request) -> web.StreamResponse:
        return _json(openai_shapes.models(self._models or (self._name,), self._max_model_len))

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(
            body=vllm_metrics.exposition(self.engine.replica, self._name),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"server_load": self._tally.in_flight})

    async def _requests(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._tally.counts())

    async def _reset_cache(self, _: web.Request) -> web.StreamResponse:
        self.engine.replica.reset()
        self._tally.reset()
        return web.json_response(self._tally.counts())


async def _stream(
    response: web.StreamResponse,
    wanted: GenerationRequest,
    generation: Generation,
    answer: Answer,
    words: list[bytes],
) -> None:
    """A chunk for each token as its step ends; for several, where the client reads slowly."""
    sent = 0
    while new := await generation.more():
        until = sent + new
        last = until == wanted.max_tokens
        chunks = answer.token_chunks(words[sent:until], last)
        if not sent:
            chunks = answer.opening() + chunks
        if last:
            if wanted.include_usage:
                chunks += answer.usage_chunk(_usage(wanted, generation))
            chunks += openai_shapes.DONE
        await response.write(chunks)
        sent = until


def _usage(wanted: GenerationRequest, generation: Generation) -> dict[str, object]:
    prompt_tokens = tokens.count(wanted.prompt)
    return openai_shapes.usage(prompt_tokens, wanted.max_tokens, generation.cached_tokens)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _error(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
    return _json(openai_shapes.error(status, kind, message, param), status)
