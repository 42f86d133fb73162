"""The configuration in force: takes documents, keeps the last good one.

Sources (a file, a ConfigMap) hand in what they read; a document takes effect
whole or not at all.
"""

from __future__ import annotations

import logging
from random import Random

from extproc.adapters.kubernetes.discovery import Discovery
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.adapters.logs import fields
from extproc.adapters.models_document import DocumentError
from extproc.adapters.telemetry import Telemetry
from extproc.core.catalog import revise
from extproc.core.router import Router
from extproc.core.spec import LoadBalancingSpec, ModelsSpec
from extproc.core.strategies import Strategy, build

log = logging.getLogger("extproc.configuration")


class Configuration:
    """Publishes each good document to the router."""

    def __init__(
        self, router: Router, discovery: Discovery, telemetry: Telemetry, rng: Random
    ) -> None:
        self._router = router
        self._discovery = discovery
        self._telemetry = telemetry
        self._rng = rng

    async def apply(self, spec: ModelsSpec) -> None:
        """Puts a document in force. Leases, and strategies that did not change, stay.

        Waits a few seconds for endpoints of Services that the document is the first to
        name, so that a model which moves there is never without any. Raises
        DocumentError where there is no cluster to discover them in.
        """
        sources = [model.source for model in spec.models if model.source is not None]
        try:
            await self._discovery.follow(sources)
        except KubernetesError as error:
            raise DocumentError([f"{sources[0]}: {error}"]) from None
        self._router.publish(
            revise(self._router.catalog, spec.models, self._strategy, self._discovery.endpoints)
        )
        self._telemetry.reloaded(successfully=True)
        log.info("models in force", extra=fields(models=len(spec.models)))
        await self._discovery.keep_only(sources)

    def refuse(self, problem: DocumentError | OSError, source: str) -> None:
        """Says why a document was not taken; the one in force stays."""
        self._telemetry.reloaded(successfully=False)
        log.error("models refused, the last good stay", extra=fields(source=source, why=problem))

    def _strategy(self, spec: LoadBalancingSpec) -> Strategy:
        return build(spec, self._rng, self._router.signals)
