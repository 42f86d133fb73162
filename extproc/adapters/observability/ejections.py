"""Logs and counts ejections of endpoints."""

from __future__ import annotations

import logging
from collections.abc import Collection

from extproc.adapters.observability.logs import fields
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.outcome import Outcome

log = logging.getLogger("extproc.ejections")


class EjectionReport:
    """Logs each ejection and each return, and counts the ejections."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def ejected(self, models: Collection[str], address: str, why: Outcome, seconds: float) -> None:
        """Report an endpoint that is ejected, or ejected for longer."""
        log.warning(
            "endpoint ejected",
            extra=fields(endpoint=address, models=",".join(models), reason=why, seconds=seconds),
        )
        for model in models:
            self._telemetry.ejected(model, why)

    def tried(self, models: Collection[str], address: str) -> None:
        """Report a request on trial."""
        log.debug("endpoint on trial", extra=fields(endpoint=address, models=",".join(models)))

    def returned(self, models: Collection[str], address: str) -> None:
        """Report an endpoint that returned to service."""
        log.info(
            "endpoint in service again", extra=fields(endpoint=address, models=",".join(models))
        )
