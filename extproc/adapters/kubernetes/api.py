"""The requests that the sidecar sends to the API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, Protocol

from extproc.adapters.kubernetes.objects import Json

OPENED: Json = {}
"""First item of a watch: the server has accepted it, and the first event may take long."""

ALIVE: Json = {}
"""Item of a watch: there was no event, but the server responds on this connection."""


class WatchSeconds(NamedTuple):
    """The duration of a watch, which the server ends."""

    pinged: int
    """The duration on a connection with PINGs, which notice that the server no longer responds."""
    other: int
    """The duration on other connections. Each end of a watch proves that the server responds."""
    grace: float = 5.0
    """A watch that exceeds its duration by this much counts as silent."""


class Api(Protocol):
    """The API server; KubernetesApi implements it over HTTP."""

    async def get(self, path: str, query: Mapping[str, object]) -> Json: ...

    async def create(self, path: str, body: Json) -> None: ...

    def watch(
        self, path: str, query: Mapping[str, object], seconds: WatchSeconds
    ) -> AsyncGenerator[Json, None]: ...

    async def close(self) -> None: ...
