"""HTTP to the API server: credentials of the kubernetes client, raw JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from kubernetes.aio import config

from extproc import __version__
from extproc.adapters.endpoints.screening import IPAddress, parse_ip
from extproc.adapters.kubernetes.api import ALIVE, OPENED, WatchSeconds
from extproc.adapters.kubernetes.connections import Connections
from extproc.adapters.kubernetes.credentials import Credentials, unusable_credentials
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    MalformedResponse,
    Unreachable,
    one_line,
    retry_after,
)
from extproc.adapters.kubernetes.http2_stream import NotProcessed
from extproc.adapters.kubernetes.objects import Json
from extproc.adapters.kubernetes.response import Request, Response, Timeouts
from extproc.adapters.kubernetes.turns import Turns
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

# Between two reads of a response: a busy API server may need time for a list.
READ_SECONDS = 30.0
LIST_SECONDS = 120.0
WRITE_SECONDS = 10.0

UNAUTHORIZED = 401

# A connection may end while the request is sent, and so may the next.
_ATTEMPTS = 5

_HEADERS = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"extproc/{__version__}",
}


@dataclass(frozen=True)
class _Call:
    """A request that any connection may send."""

    method: str
    path: str
    query: Mapping[str, object]
    time: Timeouts | WatchSeconds
    """The time that the response may take; for a watch, its duration."""
    body: bytes | None = None

    def bound(self, *, notices_silence: bool) -> tuple[str, Timeouts]:
        """Return path, query and timeouts for a kind of connection."""
        if isinstance(self.time, Timeouts):
            return _target(self.path, self.query), self.time
        seconds = self.time.pinged if notices_silence else self.time.other
        total = seconds + self.time.grace
        query = {**self.query, "watch": "true", "timeoutSeconds": seconds}
        return _target(self.path, query), Timeouts(total, min(total, READ_SECONDS), total)


class KubernetesApi:
    """The requests to one API server."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._turns = Turns()
        # If a kubeconfig changes, the server stays: the addresses that get no requests are its.
        self._host = str(credentials.configuration.host)
        self._url = urlsplit(self._host)
        self._port = self._url.port or (80 if self._url.scheme == "http" else 443)
        self._connections = Connections(self._url, self._port, credentials)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> KubernetesApi:
        """Return a pool with the credentials of a kubeconfig, without sending a request.

        Without a kubeconfig the credentials are those of this pod, else those that kubectl uses.
        Raises KubernetesError if there are no usable credentials.
        """
        credentials = await Credentials.load(kubeconfig)
        try:
            _ = urlsplit(str(credentials.configuration.host)).port
        except ValueError as error:
            raise unusable_credentials(kubeconfig, error) from None
        return cls(credentials)

    async def addresses(self) -> set[tuple[IPAddress, int]]:
        """Return the addresses of the API server's host, with its port; none if unknown."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._url.hostname, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = fields(host=self._url.hostname, why=error)
            log.warning("API server not resolved, its addresses are not rejected", extra=why)
            return set()
        ips = (parse_ip(str(sockaddr[0])) for *_, sockaddr in found)
        return {(ip, self._port) for ip in ips if ip is not None}

    async def get(self, path: str, query: Mapping[str, object]) -> Json:
        """Return an object or a list. Raises KubernetesError."""
        limits = Timeouts(LIST_SECONDS, READ_SECONDS, READ_SECONDS)
        async with self._response(_Call("GET", path, query, limits)) as response:
            return _object(await response.read())

    async def create(self, path: str, body: Json) -> None:
        """Create an object. Raises KubernetesError."""
        limits = Timeouts(WRITE_SECONDS, WRITE_SECONDS, WRITE_SECONDS)
        call = _Call("POST", path, {}, limits, json.dumps(body).encode())
        async with self._response(call):
            pass

    async def watch(
        self, path: str, query: Mapping[str, object], seconds: WatchSeconds
    ) -> AsyncGenerator[Json, None]:
        """Yield OPENED, then each event of a watch, until the server ends the response.

        ALIVE comes in between when the server has responded to a PING. Raises KubernetesError;
        Unreachable if the response has not ended in time.
        """
        async with self._response(_Call("GET", path, query, seconds)) as response:
            yield OPENED
            async for line in response.lines():
                yield ALIVE if line is None else _object(line)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    @asynccontextmanager
    async def _response(self, call: _Call) -> AsyncIterator[Response]:
        """Send a request, and yield its response. Raises KubernetesError."""
        try:
            async with self._turns.turn():
                response = await self._send(call)
            try:
                if response.status >= 400:
                    raise await _status_error(response)
                yield response
            finally:
                response.release()
        except TimeoutError:
            raise Unreachable("no complete response in time") from None
        except (aiohttp.ClientError, OSError, config.ConfigException) as error:
            raise Unreachable(one_line(error)) from None

    async def _send(self, call: _Call) -> Response:
        """Send a request; send it again if its token has been renewed in the meantime."""
        await self._credentials.refresh()
        used = self._credentials.authorization
        response = await self._send_once(call)
        if response.status == UNAUTHORIZED and await self._credentials.renew(used):
            response.release()
            response = await self._send_once(call)
        return response

    async def _send_once(self, call: _Call) -> Response:
        """Send a request, on another connection if the first one does not accept it any more."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(NotProcessed):
                return await self._send_on_one(call)
        return await self._send_on_one(call)

    async def _send_on_one(self, call: _Call) -> Response:
        connection = await self._connections.choose()
        target, timeouts = call.bound(notices_silence=connection.notices_silence)
        headers = {**_HEADERS}
        if self._credentials.authorization:
            headers["Authorization"] = self._credentials.authorization
        url, path = f"{self._host}{target}", f"{self._url.path}{target}"
        request = Request(call.method, url, path, headers, call.body, timeouts)
        return await connection.request(request)


def _target(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def _object(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedResponse(f"the response is not JSON: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise MalformedResponse("the response is not a JSON object")
    return found


async def _status_error(response: Response) -> ApiStatusError:
    """Return the error of a response: a Status, or plain text from a server that is overloaded."""
    body = await response.read()
    try:
        status = _object(body)
    except MalformedResponse:
        status = {}
    kind = response.header("Content-Type").partition(";")[0].strip().lower()
    text = body.decode(errors="replace").strip() if kind == "text/plain" else ""
    reason = status.get("message") or status.get("reason") or text or response.reason
    delay = response.header("Retry-After")
    seconds = float(delay) if delay.isdecimal() else retry_after(status)
    return ApiStatusError(response.status, one_line(reason or "no reason"), seconds)
