"""The API port of the stand-in API server: from HTTP requests to responses."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping

from aiohttp import web

from extproc.lab.api_server.discovery import discovery
from extproc.lab.api_server.errors import ApiError, Json
from extproc.lab.api_server.faults import Faults
from extproc.lab.api_server.objects import encoded
from extproc.lab.api_server.rbac import Roles, forbidden
from extproc.lab.api_server.resources import Target, target_of
from extproc.lab.api_server.store import Store
from extproc.lab.api_server.verbs import ApiRequest, answer
from extproc.lab.api_server.watch import Ending, OpenWatch, error_line

REQUESTS = 10_000
"""Requests that the log keeps."""

MAX_BODY = 64 * 2**20

_TOO_MANY = "Too many requests, please try again later."

_CUT_LINE = b'{"type":"MODIFIED","object":{"kind":"'
"""The last bytes of an aborted watch."""


class ApiFront:
    """The handler of API requests, subject to faults and roles."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        """The only accepted bearer token; empty to accept every request."""

        self.store = Store(self._wake_watches)
        self.faults = Faults()
        self.roles: Roles | None = None
        """Roles of the client; None to allow everything."""

        self.requests: deque[Json] = deque(maxlen=REQUESTS)
        self.watches: set[OpenWatch] = set()
        self._queued = 0

    def app(self) -> web.Application:
        """Return the application of the API port."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    def _wake_watches(self) -> None:
        for watch in self.watches:
            watch.wake()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        record = _record(request)
        self.requests.append(record)
        try:
            response = await self._response(request, record)
        except ApiError as error:
            response = _failure(error)
        # A watch returns at its end, but its status was recorded at its start.
        record["status"] = record["status"] or response.status
        return response

    async def _response(self, request: web.Request, record: Json) -> web.StreamResponse:
        """Return the response to a request. Raises ApiError."""
        asked = _asked(request)
        if isinstance(asked, Target):
            record.update(_logged(asked))
        body = await self._wait_in_queue(request, asked, record)
        # Nothing is awaited from here on, so the response shows one state of the store.
        self.faults.check_failing()
        self._authenticate(request.headers)
        if isinstance(asked, ApiError):
            raise asked
        if not isinstance(asked, Target):
            return _document(200, asked)
        self._authorize(asked)
        api_request = ApiRequest(asked, request.query, request.content_type, body)
        if asked.verb == "watch":
            record["status"] = 200
            return await self._watch(request, api_request)
        return _document(*answer(self.store, api_request))

    async def _wait_in_queue(
        self, request: web.Request, asked: Target | Json | ApiError, record: Json
    ) -> bytes:
        """Return the body of a request when its turn comes. Raises ApiError 429."""
        self._queued += 1
        record["queued"] = self._queued
        try:
            if 0 < self.faults.capacity < self._queued:
                raise ApiError(429, "TooManyRequests", _TOO_MANY)
            body = await request.read()
            if isinstance(asked, Target) and asked.verb == "list":
                await asyncio.sleep(self.faults.list_delay)
            await self.faults.thawed.wait()
        finally:
            self._queued -= 1
        return body

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if self.token and (scheme.lower(), token) != ("bearer", self.token):
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _authorize(self, target: Target) -> None:
        allowed = self.roles is None or self.roles.allow(target)
        if not allowed or target.resource.plural in self.faults.forbidden:
            raise forbidden(target)

    async def _watch(self, request: web.Request, asked: ApiRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            watch = OpenWatch(self.store, asked)
        except ApiError as error:
            if error.code != 410:
                raise
            # A real server detects an expired version after it has started the response.
            await response.prepare(request)
            await response.write(error_line(error))
            return response
        self.watches.add(watch)
        try:
            await response.prepare(request)
            async for lines in watch.chunks(self.faults):
                await response.write(lines)
        finally:
            self.watches.discard(watch)
        if watch.ending is Ending.ABORT:
            await response.write(_CUT_LINE)
            if request.transport is not None:
                request.transport.close()
        return response


def _record(request: web.Request) -> Json:
    """Return the log entry of a new request; status 0 means that the response is still due."""
    assert request.transport is not None
    return {
        "verb": request.method.lower(),
        "path": request.path,
        "group": "",
        "resource": "",
        "namespace": "",
        "name": "",
        "query": dict(request.query),
        "queued": 0,
        "client_port": request.transport.get_extra_info("peername")[1],
        "status": 0,
        "at": time.monotonic(),
    }


def _logged(target: Target) -> Json:
    return {
        "verb": target.verb,
        "group": target.resource.group,
        "resource": target.resource.plural,
        "namespace": target.namespace,
        "name": target.name,
    }


def _asked(request: web.Request) -> Target | Json | ApiError:
    """Return the target of a request, the discovery document it requests, or its error."""
    if request.method == "GET" and (document := discovery(request.path)):
        return document
    try:
        return target_of(request.method, request.path, request.query)
    except ApiError as error:
        return error


def _failure(error: ApiError) -> web.Response:
    if error.code != 429:
        return _document(error.code, error.document())
    # A real server that has too many requests does not spend time on a Status.
    return web.Response(status=429, text=f"{_TOO_MANY}\n", headers={"Retry-After": "1"})


def _document(status: int, document: Json) -> web.Response:
    return web.Response(status=status, body=encoded(document), content_type="application/json")
