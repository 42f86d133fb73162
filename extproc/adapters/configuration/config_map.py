"""Watches the models document in a ConfigMap."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from time import monotonic
from typing import Literal

from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.configuration.document import DocumentError, parse
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import CONFLICT, ApiStatusError, KubernetesError
from extproc.adapters.kubernetes.events import event
from extproc.adapters.kubernetes.objects import ConfigMap
from extproc.adapters.kubernetes.reflector import Reflector, WatchListener
from extproc.adapters.kubernetes.resource import Resource
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.configuration")

KEY = "models.yaml"


class ModelsConfigMap:
    """Applies each new document; after a deletion the last one stays in force.

    A refused document also creates an Event on the ConfigMap, and so does the first valid document
    after it.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        cluster: Cluster,
        configuration: Configuration,
        listener: WatchListener,
        rng: Random,
    ) -> None:
        self._namespace = namespace
        self._name = name
        self._cluster = cluster
        self._configuration = configuration
        self._listener = listener
        self._rng = rng
        self._latest: ConfigMap | None = None
        self._changed = asyncio.Event()
        self._offered: tuple[str | None] | None = None
        """Last document, valid or not: (None,) without the key, None before the first."""
        self._refused = False
        self._reflector: Reflector[ConfigMap] | None = None
        self._reflecting: asyncio.Task[None] | None = None
        self._created_at = monotonic()

    def __str__(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"

    @property
    def trouble(self) -> str:
        """Reason why there is no document yet."""
        if self._reflector is None or not self._reflector.attempted.is_set():
            return "waiting for the API server"
        return self._reflector.trouble or ("being read" if self._latest else "not found")

    @property
    def age(self) -> float:
        """Seconds since the API server last confirmed the ConfigMap, or since the start."""
        confirmed = self._reflector.confirmed_at if self._reflector else self._created_at
        return monotonic() - confirmed

    async def load(self) -> None:
        """Wait without a time limit for the first document, and apply it.

        Raises DocumentError if it is invalid, KubernetesError without credentials.
        """
        connection = await self._cluster.connection()
        resource = Resource(
            "configmaps",
            f"/api/v1/namespaces/{self._namespace}/configmaps",
            ConfigMap,
            field_selector=f"metadata.name={self._name}",
        )
        self._reflector = Reflector(connection.api, resource, self._take, self._listener, self._rng)
        self._reflecting = asyncio.create_task(self._reflector.run())
        await self._apply_next()

    async def watch(self) -> None:
        """Apply each change until cancelled; invalid documents are refused."""
        while True:
            # `_apply_next` has reported the refusal.
            with suppress(DocumentError):
                await self._apply_next()

    async def close(self) -> None:
        """Stop watching."""
        if self._reflecting is not None:
            self._reflecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._reflecting

    def _take(self, config_maps: Mapping[str, ConfigMap]) -> None:
        latest = config_maps.get(self._name)
        if latest is None:
            if self._latest is not None:
                log.warning("ConfigMap deleted, last valid models kept", extra=fields(source=self))
        elif _document(latest) != self._offered:
            self._changed.set()
        self._latest = latest

    async def _apply_next(self) -> None:
        """Wait for a document that differs from the last one, and apply it."""
        config_map = None
        while config_map is None:
            await self._changed.wait()
            self._changed.clear()
            config_map = self._latest
        self._offered = _document(config_map)
        try:
            await self._apply(*self._offered)
        except DocumentError as problem:
            self._refused = True
            self._configuration.refuse(problem, str(self))
            await self._create_event(config_map, "Warning", "ModelsRefused", str(problem))
            raise
        if self._refused:
            self._refused = False
            await self._create_event(
                config_map, "Normal", "ModelsAccepted", "the models are in force"
            )

    async def _apply(self, text: str | None) -> None:
        if text is None:
            raise DocumentError([f"there is no key {KEY!r}"])
        # In a thread: a large document takes longer to parse than a request may wait.
        # The parser also refuses what is not valid text.
        encoded = text.encode(errors="surrogatepass")
        await self._configuration.apply(await asyncio.to_thread(parse, encoded))

    async def _create_event(
        self, about: ConfigMap, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        path, body = event(about, kind, reason, message)
        try:
            await (await self._cluster.connection()).api.create(path, body)
        except KubernetesError as error:
            if isinstance(error, ApiStatusError) and error.code == CONFLICT:
                return  # Another sidecar has created it.
            log.warning("Event not created", extra=fields(source=self, why=error))


def _document(config_map: ConfigMap) -> tuple[str | None]:
    return (config_map.data.get(KEY),)
