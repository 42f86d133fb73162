"""HTTP to the API server: credentials and transport of the kubernetes client, raw JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio import config

from extproc import __version__
from extproc.adapters.endpoints.screening import IPAddress, parse_ip
from extproc.adapters.kubernetes.api import OPENED
from extproc.adapters.kubernetes.credentials import Credentials, unusable_credentials
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    MalformedResponse,
    Unreachable,
    one_line,
    retry_after,
)
from extproc.adapters.kubernetes.objects import Json
from extproc.adapters.kubernetes.transport import new_session
from extproc.adapters.kubernetes.turns import Turns
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

CONNECT_SECONDS = 4.0
# Between two reads of a response: a busy API server may need time for a list.
READ_SECONDS = 30.0
LIST_SECONDS = 120.0
WRITE_SECONDS = 10.0

UNAUTHORIZED = 401

_HEADERS = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"extproc/{__version__}",
}


class KubernetesApi:
    """A connection pool to one API server."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._turns = Turns()
        self._session: aiohttp.ClientSession | None = None
        # If a kubeconfig changes, the server stays: the addresses that get no requests are its.
        self._host = str(credentials.configuration.host)
        self._url = urlsplit(self._host)
        self._port = self._url.port or (80 if self._url.scheme == "http" else 443)

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
        timeout = aiohttp.ClientTimeout(
            total=LIST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        async with self._request("GET", path, query, timeout) as response:
            return _object(await response.read())

    async def create(self, path: str, body: Json) -> None:
        """Create an object. Raises KubernetesError."""
        timeout = aiohttp.ClientTimeout(total=WRITE_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._request("POST", path, {}, timeout, body):
            pass

    async def watch(
        self, path: str, query: Mapping[str, object], seconds: float
    ) -> AsyncGenerator[Json, None]:
        """Yield OPENED, then each event of a watch, until the server ends the response.

        Raises KubernetesError; Unreachable if the response has not ended after `seconds`.
        """
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        async with self._request("GET", path, {**query, "watch": "true"}, timeout) as response:
            yield OPENED
            while line := await _line(response):
                yield _object(line)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        timeout: aiohttp.ClientTimeout,
        body: Json | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self._host}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            async with AsyncExitStack() as stack:
                async with self._turns.turn():
                    sending = await self._send(method, url, timeout, data)
                    response = await stack.enter_async_context(sending)
                    if response.status >= 400:
                        raise await _status_error(response)
                yield response
        except TimeoutError:
            raise Unreachable("no complete response in time") from None
        except (aiohttp.ClientError, OSError, config.ConfigException) as error:
            raise Unreachable(one_line(error)) from None

    async def _send(
        self, method: str, url: str, timeout: aiohttp.ClientTimeout, data: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request; send it again if its token has been renewed in the meantime."""
        await self._credentials.refresh()
        used = self._credentials.authorization
        response = await self._send_once(method, url, timeout, data)
        if response.status == UNAUTHORIZED and await self._credentials.renew(used):
            response.release()
            response = await self._send_once(method, url, timeout, data)
        return response

    async def _send_once(
        self, method: str, url: str, timeout: aiohttp.ClientTimeout, data: bytes | None
    ) -> aiohttp.ClientResponse:
        self._session = self._session or new_session()
        credentials, headers = self._credentials, {**_HEADERS}
        if credentials.authorization:
            headers["Authorization"] = credentials.authorization
        return await self._session.request(
            method,
            url,
            headers=headers,
            data=data,
            timeout=timeout,
            # Connections with other certificates end when they are idle.
            ssl=credentials.tls,
            server_hostname=credentials.configuration.tls_server_name,
            proxy=credentials.configuration.proxy,
            proxy_headers=credentials.configuration.proxy_headers,
        )


async def _line(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readline()
    except (ValueError, LineTooLong):
        # The transport limits the length of a line.
        raise MalformedResponse(
            "the watch sent an event larger than any object in the API"
        ) from None


def _object(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedResponse(f"the response is not JSON: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise MalformedResponse("the response is not a JSON object")
    return found


async def _status_error(response: aiohttp.ClientResponse) -> ApiStatusError:
    """Return the error of a response: a Status, or plain text from a server that is overloaded."""
    body = await response.read()
    try:
        status = _object(body)
    except MalformedResponse:
        status = {}
    text = body.decode(errors="replace").strip() if response.content_type == "text/plain" else ""
    reason = status.get("message") or status.get("reason") or text or response.reason
    delay = response.headers.get("Retry-After", "")
    seconds = float(delay) if delay.isdecimal() else retry_after(status)
    return ApiStatusError(response.status, one_line(reason or "no reason"), seconds)
