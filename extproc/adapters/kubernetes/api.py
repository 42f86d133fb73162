"""HTTP to the API server: the kubernetes client's credentials and transport, raw JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from aiohttp.http_exceptions import LineTooLong
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTClientObject

from extproc import __version__
from extproc.adapters.kubernetes.cluster import OPENED
from extproc.adapters.kubernetes.errors import Garbled, KubernetesError, Refusal, Unreachable
from extproc.adapters.kubernetes.objects import Json
from extproc.adapters.kubernetes.screening import IPAddress, parse
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

CONNECT_SECONDS = 4.0
# Between two reads of an answer: a busy API server may take its time over a list.
READ_SECONDS = 30.0
LIST_SECONDS = 120.0
WRITE_SECONDS = 10.0
# A path that has died without a word is noticed by the kernel within half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

_HEADERS = {
    "Accept": "application/json",
    "Content-Type": "application/json",
    "User-Agent": f"extproc/{__version__}",
}


class KubernetesApi:
    """A connection pool to one API server."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)
        self._client.rest_client = _Transport(configuration)
        self._host = str(configuration.host)
        self._url = urlsplit(self._host)
        self._port = self._url.port or (80 if self._url.scheme == "http" else 443)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> KubernetesApi:
        """With the credentials of `kubeconfig`, else of the pod we run in, else those kubectl uses.

        Nothing is sent yet. Raises KubernetesError where there are none.
        """
        configuration = Configuration()
        # Python 3.13 refuses certificates without an authority key identifier, which clusters
        # of some age have; client-go never asked for one. The chain is verified all the same.
        configuration.disable_strict_ssl_verification = True
        in_pod = kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ
        place = "this pod" if in_pod else str(kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION)
        try:
            if in_pod:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                _check_existence(place)
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    config_file=place,
                    client_configuration=configuration,
                    persist_config=False,
                )
            return cls(configuration)
        except Exception as error:
            # The loaders let out whatever a malformed file provokes.
            why = f"no credentials for Kubernetes in {place}: {_one_line(error)}"
            raise KubernetesError(why) from None

    async def addresses(self) -> set[tuple[IPAddress, int]]:
        """Where the API server is to be found: the addresses of its URL's host, with the port."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._url.hostname, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = fields(host=self._url.hostname, why=error)
            log.warning("the API server's own addresses are unknown, and not refused", extra=why)
            return set()
        ips = (parse(str(sockaddr[0])) for *_, sockaddr in found)
        return {(ip, self._port) for ip in ips if ip is not None}

    async def get(self, path: str, query: Mapping[str, object]) -> Json:
        """An object or a list. Raises KubernetesError."""
        timeout = aiohttp.ClientTimeout(
            total=LIST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS
        )
        async with self._request("GET", path, query, timeout) as response:
            return _object(await response.read())

    async def create(self, path: str, body: Json) -> None:
        """Creates an object. Raises KubernetesError."""
        timeout = aiohttp.ClientTimeout(total=WRITE_SECONDS, sock_connect=CONNECT_SECONDS)
        async with self._request("POST", path, {}, timeout, body):
            pass

    async def watch(
        self, path: str, query: Mapping[str, object], seconds: float
    ) -> AsyncGenerator[Json, None]:
        """OPENED, then the events of a watch, as they come; ends with the server's answer.

        Raises KubernetesError, Unreachable if the end has not come after `seconds`.
        """
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        async with self._request("GET", path, {**query, "watch": "true"}, timeout) as response:
            yield OPENED
            while line := await _line(response):
                yield _object(line)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

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
        headers = {**_HEADERS}
        try:
            # Asked each time: tokens are renewed.
            await self._client.update_params_for_auth(
                headers, [], ["BearerToken"], path, method, None
            )
            answer = await self._client.call_api(
                method, url, headers, body=body, _request_timeout=timeout
            )
            async with answer.response as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read())
                yield response
        except TimeoutError:
            raise Unreachable("no answer in time") from None
        except (aiohttp.ClientError, OSError, config.ConfigException) as error:
            raise Unreachable(_one_line(error)) from None


def _check_existence(kubeconfig: str) -> None:
    """Of a missing file, or of several, the loader says only that it lacks a key."""
    if not any(Path(place).expanduser().exists() for place in kubeconfig.split(os.pathsep)):
        raise FileNotFoundError("there is no such file")


class _Transport(RESTClientObject):
    """The client's transport, which notices a path that has died."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        # No limit: each watch holds a connection.
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_socket)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        # Not every platform has every one of them.
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def _line(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readline()
    except (ValueError, LineTooLong):
        # Longer than the transport buffers.
        raise Garbled("an event larger than any object that the API stores") from None


def _object(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Garbled(f"not JSON: {_one_line(error)}") from None
    if not isinstance(found, dict):
        raise Garbled("not an object")
    return found


def _refusal(code: int, body: bytes) -> Refusal:
    try:
        status = _object(body)
    except Garbled:
        status = {}
    return Refusal(code, _one_line(status.get("message") or status.get("reason") or "no reason"))


def _one_line(error: object) -> str:
    lines = str(error).splitlines()
    return lines[0][:500] if lines else type(error).__name__
