"""The paths of OpenAI's Responses API, which stores the responses of its replica.

A real vLLM stores them only with VLLM_ENABLE_RESPONSES_API_STORE=1, a stand-in always. Other
replicas do not have them and answer 404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from aiohttp import web

from extproc.lab.stand_ins.generate import Generations, Run
from extproc.lab.stand_ins.generation_request import Document, Message, read_document
from extproc.lab.stand_ins.http_responses import error_response, json_document
from extproc.lab.stand_ins.request_error import RequestError
from extproc.lab.stand_ins.responses_requests import ResponsesRequest, responses_request
from extproc.lab.stand_ins.responses_shapes import ResponsesResponse, finished, response

RESPONSES = "/v1/responses"

MOST_KEPT = 1_000
"""Most stored responses; the oldest one is dropped first."""


class ResponsesRoutes:
    """The Responses API over the generations of one replica."""

    def __init__(
        self, generating: Generations, diagnostics: Callable[[bytes], Mapping[str, str]]
    ) -> None:
        self._generating = generating
        self._diagnostics = diagnostics
        self._responses: dict[str, dict[str, Any]] = {}
        self._conversations: dict[str, Sequence[Message]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}
        """Tasks of unfinished background responses, by response id."""

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post(RESPONSES, self._create)
        app.router.add_get(RESPONSES + "/{id}", self._retrieve)
        app.router.add_post(RESPONSES + "/{id}/cancel", self._cancel)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            wanted = self._wanted(read_document(body))
            run = self._generating.start(wanted.generation)
        except RequestError as refusal:
            return error_response(refusal)
        response_id = wanted.response_id or f"resp_{uuid4().hex}"
        background = wanted.background and not wanted.generation.stream
        status = "queued" if background else "in_progress"
        begun = response(response_id, run.model, run.created, wanted, status)
        if background:
            self._keep(wanted, begun, "")
            self._working[response_id] = asyncio.create_task(self._work(wanted, run, begun))
            return json_document(begun)

        def keep(document: dict[str, Any], text: str) -> None:
            if wanted.store:
                self._keep(wanted, document, text)

        shape = ResponsesResponse(begun, wanted, keep)
        return await self._generating.respond(request, run, shape, self._diagnostics(body))

    async def _retrieve(self, request: web.Request) -> web.StreamResponse:
        try:
            return json_document(self._found(request.match_info["id"]))
        except RequestError as refusal:
            return error_response(refusal)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        try:
            document = self._found(request.match_info["id"])
        except RequestError as refusal:
            return error_response(refusal)
        task = self._working.pop(document["id"], None)
        if task is None:
            message = "Cannot cancel a synchronous response."
            return error_response(
                RequestError(400, "invalid_request_error", message, "response_id")
            )
        task.cancel()
        document["status"] = "cancelled"
        return json_document(document)

    def _wanted(self, document: Document) -> ResponsesRequest:
        """Parse a request and add the conversation that it continues. Raises RequestError."""
        earlier: Sequence[Message] = ()
        previous = document.get("previous_response_id")
        if previous is not None:
            earlier = self._conversations[self._found(previous)["id"]]
        return responses_request(document, earlier)

    def _found(self, response_id: object) -> dict[str, Any]:
        found = self._responses.get(response_id) if isinstance(response_id, str) else None
        if found is None:
            message = f"Response with id '{response_id}' not found."
            raise RequestError(404, "invalid_request_error", message, "response_id")
        return found

    def _keep(self, wanted: ResponsesRequest, document: dict[str, Any], text: str) -> None:
        response_id = document["id"]
        self._responses[response_id] = document
        self._conversations[response_id] = [*wanted.conversation, ("assistant", text)]
        while len(self._responses) > MOST_KEPT:
            oldest = next(iter(self._responses))
            del self._responses[oldest], self._conversations[oldest]

    async def _work(self, wanted: ResponsesRequest, run: Run, begun: dict[str, Any]) -> None:
        """Finish a background response; a cancellation ends its generation."""
        begun["status"] = "in_progress"
        try:
            await run.all()
        finally:
            self._generating.abort(run)
        document = finished(begun, wanted, run.texts[0], run.counts)
        self._keep(wanted, document, b"".join(run.texts[0]).decode())
        self._working.pop(begun["id"], None)
