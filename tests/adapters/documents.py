"""Models documents, and a configuration to which tests apply them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.discovery.discovery import Discovery
from extproc.adapters.dns.lookup import Resolve
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.router import Router
from extproc.core.schema import Source
from tests.extent import PATIENCE

LLAMA = b"models:\n- name: llama\n  endpoints: [10.0.0.1:8000, 10.0.0.2:8000]\n"
QWEN = b"models:\n- name: qwen\n  endpoints: [10.0.0.3:8000]\n"
BROKEN = b"models: [\n"

NO_CREDENTIALS = Path("/nonexistent/kubeconfig")


def telemetry_of(router: Router) -> Telemetry:
    """Return the metrics of a sidecar with this router."""
    return Telemetry(router.fleet, lambda: router.catalog)


class Served:
    """A configuration with its discovery, router and metrics."""

    def __init__(self, cluster: Cluster | None = None, resolve: Resolve | None = None) -> None:
        self.cluster = cluster or Cluster(NO_CREDENTIALS, allow_loopback=False)
        self.router = Router(Fleet())
        self.telemetry = telemetry_of(self.router)
        rng = Random(0)
        self.discovery = Discovery(
            self.cluster, self._publish, self.telemetry.discovery, rng, resolve
        )
        self.configuration = Configuration(
            self.router, self.router.fleet.signals, self.discovery, self.telemetry, rng
        )

    @property
    def models(self) -> list[str]:
        return list(self.router.catalog.models)

    def addresses(self, model: str) -> list[str]:
        """Return the addresses of a model's endpoints in the catalog."""
        snapshot = self.router.catalog.models[model].snapshot
        return [endpoint.address for endpoint in snapshot.endpoints]

    def sample(self, name: str, **labels: str) -> float:
        """Return the value of one line of the metrics."""
        return sample(self.telemetry, name, **labels)

    def refusals(self) -> float:
        """Return the number of refused documents."""
        return self.sample("extproc_config_reloads_total", result="failure")

    async def close(self) -> None:
        """Stop discovery."""
        await self.discovery.keep_only(())
        await self.cluster.close()

    def _publish(self, source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        self.router.publish(self.router.catalog.rediscovered(source, endpoints))


async def eventually(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.005)


def sample(telemetry: Telemetry, name: str, **labels: str) -> float:
    """Return the value of one line of the metrics; -1 if there is no such line."""
    listed = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    start = f"{name}{{{listed}}} " if labels else f"{name} "
    for line in telemetry.exposition().decode().splitlines():
        if line.startswith(start):
            return float(line.removeprefix(start))
    return -1
