"""The cluster we belong to, connected to when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.kubernetes.objects import Json
from extproc.adapters.kubernetes.screening import Screen

if TYPE_CHECKING:
    from extproc.adapters.kubernetes.api import KubernetesApi

OPENED: Json = {}
"""What a watch yields first: the server has taken it, and events may be long in coming."""


class Api(Protocol):
    """What is asked of the API server; see KubernetesApi."""

    async def get(self, path: str, query: Mapping[str, object]) -> Json: ...

    async def create(self, path: str, body: Json) -> None: ...

    def watch(
        self, path: str, query: Mapping[str, object], seconds: float
    ) -> AsyncGenerator[Json, None]: ...

    async def close(self) -> None: ...


class Connection(NamedTuple):
    """The API server, and the addresses never to be routed to."""

    api: Api
    screen: Screen


MISSING_CLIENT = "the Kubernetes client is not installed: pip install 'extproc-router[kubernetes]'"


class Cluster:
    """Connects once. Without anything to discover it never does.

    Then it needs no credentials, and not the Kubernetes client, which is an optional dependency.
    """

    def __init__(self, kubeconfig: Path | None, *, allow_loopback: bool) -> None:
        self._kubeconfig = kubeconfig
        self._allow_loopback = allow_loopback
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def connection(self) -> Connection:
        """The connection. Raises KubernetesError without credentials, or without the client."""
        async with self._connecting:
            if self._connection is None:
                api = await _connected(self._kubeconfig)
                screen = Screen(await api.addresses(), allow_loopback=self._allow_loopback)
                self._connection = Connection(api, screen)
        return self._connection

    async def close(self) -> None:
        """Closes all connections."""
        if self._connection is not None:
            await self._connection.api.close()


async def _connected(kubeconfig: Path | None) -> KubernetesApi:
    # The client takes a fifth of a second and 20 MB to import.
    try:
        from extproc.adapters.kubernetes.api import KubernetesApi
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kubernetes":
            raise
        raise KubernetesError(MISSING_CLIENT) from None
    return await KubernetesApi.connect(kubeconfig)
