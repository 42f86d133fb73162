"""The configuration in force: takes documents, keeps the last good one.

Sources (a file, later others) hand in what they read; a document takes effect
whole or not at all.
"""

from __future__ import annotations

import logging
from random import Random

from extproc.adapters.logs import fields
from extproc.adapters.models_document import DocumentError, parse
from extproc.adapters.telemetry import Telemetry
from extproc.core.catalog import revise
from extproc.core.router import Router
from extproc.core.spec import LoadBalancingSpec, ModelsSpec
from extproc.core.strategies import Strategy, build

log = logging.getLogger("extproc.configuration")


class Configuration:
    """Publishes each good document to the router."""

    def __init__(self, router: Router, telemetry: Telemetry, rng: Random) -> None:
        self._router = router
        self._telemetry = telemetry
        self._rng = rng

    def apply(self, spec: ModelsSpec) -> None:
        """Puts a document in force. Leases, and strategies that did not change, stay."""
        self._router.catalog = revise(self._router.catalog, spec.models, self._strategy)
        self._telemetry.reloaded(successfully=True)
        log.info("models in force", extra=fields(models=len(spec.models)))

    def refuse(self, problem: DocumentError | OSError, source: str) -> None:
        """Says why a document was not taken; the one in force stays."""
        self._telemetry.reloaded(successfully=False)
        log.error("models refused, the last good stay", extra=fields(source=source, why=problem))

    def _strategy(self, spec: LoadBalancingSpec) -> Strategy:
        return build(spec, self._rng)


def read(text: bytes) -> ModelsSpec:
    """The document, if this version can serve it. Raises DocumentError."""
    spec = parse(text)
    undiscoverable = [
        f"models[{position}].service: discovery from Kubernetes is not part of this version; "
        "list 'endpoints'"
        for position, model in enumerate(spec.models)
        if model.service is not None
    ]
    if undiscoverable:
        raise DocumentError(undiscoverable)
    return spec
