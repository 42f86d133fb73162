"""The configuration in force: the last valid models document.

Documents come from a file or a ConfigMap. A document takes effect completely or not at all.
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
from extproc.adapters.discovery.pace import Pace
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.ring import no_pause
from extproc.core.fleet.signals import Signals
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import LoadBalancingSpec, ModelsSpec, Source
from extproc.core.strategies import Strategy, build

log = logging.getLogger("extproc.configuration")


class Configuration:
    """Publishes each valid document to the router."""

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
        """Put a document in force. Leases and unchanged strategies stay.

        Wait a few seconds for the endpoints of new sources, so that a model that moves there always
        has endpoints. Raises DocumentError if a source needs a cluster and there is none.
        """
        sources = [model.source for model in spec.models if model.source is not None]
        try:
            await self._discovery.watch(sources)
        except KubernetesError as error:
            raise DocumentError([f"{sources[0]}: {error}"]) from None
        self._router.publish(await self._revised(spec, sources))
        self._telemetry.configuration.reloaded(successfully=True)
        await self._report(spec)
        await self._discovery.keep_only(sources)

    async def _report(self, spec: ModelsSpec) -> None:
        """Log what a document changed."""
        before, self._applied = self._applied, spec
        # In a thread: comparing thousands of models takes longer than a request may wait.
        changed = await asyncio.to_thread(changes, before, spec)
        event = "models document applied" if changed else "models document unchanged"
        log.info(event, extra=fields(models=len(spec.models), **changed))

    async def _revised(self, spec: ModelsSpec, sources: Sequence[Source]) -> Catalog:
        """Return the catalog with this document.

        A thread builds it, because placing thousands of endpoints on rings takes longer than a
        request may wait. Changes of endpoints and adapters in the meantime are applied afterwards,
        which takes time in proportion to their number. The first document is in no request's way.
        """
        before = self._router.catalog
        known = {source: self._discovery.endpoints(source) for source in sources}
        pause = Pace() if before.models else no_pause
        made = await asyncio.to_thread(
            revise, before, spec.models, self._strategy, known.__getitem__, pause
        )
        current = self._router.catalog
        if current is before:
            return made
        made = replace(made, found=current.found)
        return revise(made, spec.models, self._strategy, self._discovery.endpoints)

    def refuse(self, problem: DocumentError | OSError, source: str) -> None:
        """Report a refused document; the last valid one stays in force."""
        self._telemetry.configuration.reloaded(successfully=False, why=problem)
        log.error("models document refused", extra=fields(source=source, why=problem))

    def _strategy(self, spec: LoadBalancingSpec) -> Strategy:
        return build(spec, self._rng, self._signals)
