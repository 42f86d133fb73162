"""Puts the endpoints of sources in force, without blocking the event loop."""

from __future__ import annotations

import asyncio
import logging

from extproc.adapters.discovery.pace import Pace
from extproc.adapters.observability.logs import fields
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.ring import STEP
from extproc.core.routing.catalog import Catalog
from extproc.core.routing.rings import changed_nodes, with_rings_of
from extproc.core.routing.router import Router
from extproc.core.schema import Source

log = logging.getLogger("extproc.discovery")

_AT_ONCE = STEP // 2
"""Virtual nodes that may change on the event loop: 8 endpoints, which take 6 ms of 1,000."""

_ENOUGH = 0.5
"""Share of a source's endpoints that must be on the rings for the others to wait."""


class Publisher:
    """Publishes a catalog for each change of a source's endpoints.

    A small change takes effect at once. For a large one, such as a new model with a thousand
    endpoints, a thread builds the rings, at a tenth of a processor's time. Changes in the meantime
    take effect after it. But endpoints that leave are not chosen from now on, unless most of the
    others are new: the few that stay could not take their load.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._pending: dict[Source, tuple[Endpoint, ...]] = {}
        self._building: asyncio.Task[None] | None = None

    def publish(self, source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        """Put these endpoints of a source in force, now or soon."""
        catalog = self._router.catalog
        if source not in self._pending and changed_nodes(catalog, source, endpoints) <= _AT_ONCE:
            self._router.publish(catalog.rediscovered(source, endpoints))
            return
        staying = _staying(catalog, source, endpoints)
        if staying is not catalog:
            self._router.publish(staying)
        self._pending[source] = endpoints
        if self._building is None:
            self._building = asyncio.create_task(self._build_all())

    async def settle(self) -> None:
        """Wait until all changes so far are in force."""
        if self._building is not None:
            await asyncio.wait([self._building])

    async def close(self) -> None:
        """Drop the changes that are not in force yet."""
        if self._building is not None:
            self._building.cancel()
            await asyncio.wait([self._building])

    async def _build_all(self) -> None:
        try:
            while self._pending:
                source, endpoints = next(iter(self._pending.items()))
                try:
                    await self._build(source, endpoints)
                except Exception:
                    log.exception("endpoints not published", extra=fields(source=source))
                if self._pending[source] is endpoints:
                    del self._pending[source]
        finally:
            self._building = None

    async def _build(self, source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        before = self._router.catalog
        built = await asyncio.to_thread(before.rediscovered, source, endpoints, Pace())
        self._router.publish(self._merged(built, source, endpoints))

    def _merged(self, built: Catalog, source: Source, endpoints: tuple[Endpoint, ...]) -> Catalog:
        """Return the current catalog, which others may have replaced, with the built rings."""
        current = with_rings_of(self._router.catalog, built, source)
        merged = current.rediscovered(source, endpoints)
        latest = self._pending[source]
        return merged if latest is endpoints else _staying(merged, source, latest)


def _staying(catalog: Catalog, source: Source, endpoints: tuple[Endpoint, ...]) -> Catalog:
    """Return the catalog without the endpoints that left, if enough of the others stay."""
    known = {
        endpoint.name
        for model in catalog.models.values()
        if model.spec.source == source
        for endpoint in model.snapshot.endpoints
    }
    stay = sum(endpoint.name in known for endpoint in endpoints)
    return catalog.staying(source, endpoints) if stay >= _ENOUGH * len(endpoints) else catalog
