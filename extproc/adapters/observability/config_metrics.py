"""Metrics of the models document: reloads, and its age."""

from __future__ import annotations

from typing import Protocol, TypedDict

from prometheus_client import CollectorRegistry, Counter, Gauge


class DocumentSource(Protocol):
    """The source of the models document; its text form names it."""

    @property
    def age(self) -> float:
        """Seconds since the document was last known to be current."""


class ConfigurationState(TypedDict):
    """The models document, in `/debug/state`; `source` is None before a source is known."""

    source: str | None
    age_seconds: float
    last_reload_successful: bool


class ConfigMetrics:
    """Counts reloads, and reads the age of the document at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.source: DocumentSource | None = None
        self._successful = False
        self.last_error = ""
        """The reason why the last document was refused; empty if it is in force."""
        self._reloads = Counter(
            "extproc_config_reloads",
            "Models documents that were loaded, including the first, by result: success or "
            "failure.",
            ["result"],
            registry=registry,
        )
        for result in ("success", "failure"):
            self._reloads.labels(result)
        last = Gauge(
            "extproc_config_last_reload_successful",
            "1 if the last models document is in force, 0 if it was refused.",
            registry=registry,
        )
        last.set_function(lambda: self._successful)
        age = Gauge(
            "extproc_config_age_seconds",
            "Time since the models document was last known to be current; 0 for a file.",
            registry=registry,
        )
        age.set_function(lambda: self._age)

    def reloaded(self, *, successfully: bool, why: object = "") -> None:
        """Count a models document that was loaded, or refused for this reason."""
        self.last_error = str(why)
        self._reloads.labels("success" if successfully else "failure").inc()
        self._successful = successfully

    @property
    def state(self) -> ConfigurationState:
        """The current values, for `/debug/state`."""
        return {
            "source": None if self.source is None else str(self.source),
            "age_seconds": round(self._age, 3),
            "last_reload_successful": self._successful,
        }

    @property
    def _age(self) -> float:
        return 0.0 if self.source is None else self.source.age
