"""The sidecar's Kubernetes cluster; the connection opens when it is first needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from extproc.adapters.endpoints.screening import Screen
from extproc.adapters.kubernetes.api import Api
from extproc.adapters.kubernetes.errors import KubernetesError

if TYPE_CHECKING:
    from extproc.adapters.kubernetes.http_api import KubernetesApi


class ClusterConnection(NamedTuple):
    """The API server, and the screen that rejects its addresses."""

    api: Api
    screen: Screen


CLIENT = ("h2", "kubernetes")
"""The packages that the extra `kubernetes` adds."""

MISSING_CLIENT = "the Kubernetes client is not installed: pip install 'extproc-router[kubernetes]'"


class Cluster:
    """Connects once, and only if a source of the configuration needs it.

    A configuration without such a source needs neither credentials nor the Kubernetes client,
    which is an optional dependency.
    """

    def __init__(self, kubeconfig: Path | None, *, allow_loopback: bool) -> None:
        self._kubeconfig = kubeconfig
        self._allow_loopback = allow_loopback
        self._connection: ClusterConnection | None = None
        self._connecting = asyncio.Lock()

    async def connection(self) -> ClusterConnection:
        """Return the connection. Raises KubernetesError without credentials or without the client.

        The first call opens it.
        """
        async with self._connecting:
            if self._connection is None:
                api = await _connected(self._kubeconfig)
                screen = Screen(await api.addresses(), allow_loopback=self._allow_loopback)
                self._connection = ClusterConnection(api, screen)
        return self._connection

    async def close(self) -> None:
        """Close the connection if it is open."""
        if self._connection is not None:
            await self._connection.api.close()


async def _connected(kubeconfig: Path | None) -> KubernetesApi:
    # The client takes a fifth of a second and 20 MB to import.
    try:
        from extproc.adapters.kubernetes.http_api import KubernetesApi
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in CLIENT:
            raise
        raise KubernetesError(MISSING_CLIENT) from None
    return await KubernetesApi.connect(kubeconfig)
