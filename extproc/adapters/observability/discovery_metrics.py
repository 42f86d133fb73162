"""Metrics of discovery: lists, watches, lookups and rejected addresses."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from extproc.core.schema import Source


class DiscoveryMetrics:
    """Counts what discovery reports; it is a DiscoveryListener."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refused_endpoints = Counter(
            "extproc_endpoints_refused",
            "Discovered addresses that were rejected, each counted when it appears.",
            ["source", "reason"],
            registry=registry,
        )
        self._lists = Counter(
            "extproc_discovery_lists",
            "Lists of Kubernetes objects by result: ok, unreachable, garbled, expired or a status.",
            ["resource", "result"],
            registry=registry,
        )
        self._watches = Counter(
            "extproc_discovery_watches",
            "Watches of Kubernetes objects by result: ended (in time), or an error as for lists.",
            ["resource", "result"],
            registry=registry,
        )
        self._lookups = Counter(
            "extproc_name_lookups",
            "Lookups of endpoints' host names by result: ok, none (the name has no addresses) or "
            "failed (no usable response).",
            ["result"],
            registry=registry,
        )

    def endpoint_refused(self, source: Source, reason: str) -> None:
        """Count a rejected address."""
        self._refused_endpoints.labels(str(source), reason).inc()

    def listed(self, resource: str, result: str) -> None:
        """Count a list of Kubernetes objects."""
        self._lists.labels(resource, result).inc()

    def watched(self, resource: str, result: str) -> None:
        """Count a watch of Kubernetes objects, at its end."""
        self._watches.labels(resource, result).inc()

    def looked_up(self, result: str) -> None:
        """Count a lookup of a host name."""
        self._lookups.labels(result).inc()
