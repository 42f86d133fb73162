"""The paths of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from extproc.lab.stand_ins import anthropic_shapes, tokens
from extproc.lab.stand_ins.anthropic_requests import counted_request, messages_request
from extproc.lab.stand_ins.anthropic_shapes import MessagesResponse
from extproc.lab.stand_ins.generate import Generations
from extproc.lab.stand_ins.http_responses import error_response, json_response
from extproc.lab.stand_ins.request_error import RequestError

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


class AnthropicRoutes:
    """The Messages API over the generations of one replica."""

    def __init__(
        self, generating: Generations, diagnostics: Callable[[bytes], Mapping[str, str]]
    ) -> None:
        self._generating = generating
        self._diagnostics = diagnostics

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post(MESSAGES, self._messages)
        app.router.add_post(COUNT_TOKENS, self._count)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            run = self._generating.start(messages_request(body))
        except RequestError as refusal:
            return _error_response(refusal)
        shape = MessagesResponse(run.model, run.number, run.prompt_tokens)
        return await self._generating.respond(request, run, shape, self._diagnostics(body))

    async def _count(self, request: web.Request) -> web.StreamResponse:
        try:
            wanted = counted_request(await request.read())
            self._generating.model_of(wanted)
        except RequestError as refusal:
            return _error_response(refusal)
        return json_response(anthropic_shapes.counted(tokens.count(wanted.prompt)))


def _error_response(refusal: RequestError) -> web.Response:
    """Return the error in Anthropic's shape; vLLM's body validation keeps OpenAI's shape."""
    if refusal.kind == "Bad Request":
        return error_response(refusal)
    return json_response(anthropic_shapes.error(refusal), refusal.status)
