"""The requests that the sidecar sends to the API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from extproc.adapters.kubernetes.objects import Json

OPENED: Json = {}
"""First item of a watch: the server has accepted it, and the first event may take long."""


class Api(Protocol):
    """The API server; KubernetesApi implements it over HTTP."""

    async def get(self, path: str, query: Mapping[str, object]) -> Json: ...

    async def create(self, path: str, body: Json) -> None: ...

    def watch(
        self, path: str, query: Mapping[str, object], seconds: float
    ) -> AsyncGenerator[Json, None]: ...

    async def close(self) -> None: ...
