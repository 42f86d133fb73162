"""The configuration in force: takes documents, keeps the last good one.

Sources (a file, a ConfigMap) hand in what they read; a document takes effect
whole or not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from extproc.adapters.configuration.changes import changes
from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.discovery.discovery import Discovery
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.signals import Signals
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import LoadBalancingSpec, ModelsSpec, Source
from extproc.core.strategies import Strategy, build

log = logging.getLogger("extproc.configuration")


class Configuration:
    """Publishes each good document to the router."""

    def __init__(
        self,
        router: Router,
        signals: Signals,
        discovery: Discovery,
        telemetry: Telemetry,
        rng: Random,
    ) -> None:
        self._router = router
        self._signals = signals
        self._discovery = discovery
        self._telemetry = telemetry
        self._rng = rng
        self._applied: ModelsSpec | None = None

    async def apply(self, spec: ModelsSpec) -> None:
        """Puts a document in force. Leases, and strategies that did not change, stay.

        Waits a few seconds for endpoints of Services that the document is the first to
        name, so that a model which moves there is never without any. Raises
        DocumentError where there is no cluster to discover them in.
        """
        sources = [model.source for model in spec.models if model.source is not None]
        try:
            await self._discovery.watch(sources)
        except KubernetesError as error:
            raise DocumentError([f"{sources[0]}: {error}"]) from None
        self._router.publish(await self._revised(spec, sources))
        self._telemetry.reloaded(successfully=True)
        await self._report(spec)
        await self._discovery.keep_only(sources)

    async def _report(self, spec: ModelsSpec) -> None:
        """Log what a document changed."""
        before, self._applied = self._applied, spec
        # Off the loop: to compare thousands of models takes longer than a request may wait.
        changed = await asyncio.to_thread(changes, before, spec)
        event = "models document applied" if changed else "models document unchanged"
        log.info(event, extra=fields(models=len(spec.models), **changed))

    async def _revised(self, spec: ModelsSpec, sources: Sequence[Source]) -> Catalog:
        """The catalog with this document.

        It is made off the loop, for to place thousands of endpoints on rings takes longer than a
        request may wait. What came of endpoints and adapters meanwhile is then brought into it,
        which takes the less the less that was.
        """
        before = self._router.catalog
        known = {source: self._discovery.endpoints(source) for source in sources}
        made = await asyncio.to_thread(
            revise, before, spec.models, self._strategy, known.__getitem__
        )
        current = self._router.catalog
        if current is before:
            return made
        made = replace(made, found=current.found)
        return revise(made, spec.models, self._strategy, self._discovery.endpoints)

    def refuse(self, problem: DocumentError | OSError, source: str) -> None:
        """Says why a document was not taken; the one in force stays."""
        self._telemetry.reloaded(successfully=False)
        log.error("models document refused", extra=fields(source=source, why=problem))

    def _strategy(self, spec: LoadBalancingSpec) -> Strategy:
        return build(spec, self._rng, self._signals)
