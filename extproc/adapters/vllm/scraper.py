"""Keeps the signals and the adapters of endpoints current, for the models that need them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random

from extproc.adapters.observability.logs import fields
from extproc.adapters.vllm.client import Client
from extproc.adapters.vllm.endpoint import ScrapeContext, ScrapedEndpoint
from extproc.adapters.vllm.failure_log import FailureLog
from extproc.adapters.vllm.found_adapters import FoundAdapters
from extproc.adapters.vllm.readings import ScrapeListener
from extproc.adapters.vllm.schedule import (
    FIRST_PER_SECOND,
    METRICS_PER_SECOND,
    TOGETHER,
    Pacer,
    Plan,
    plans,
)
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.catalog import Adapters, Catalog

log = logging.getLogger("extproc.signals")

LISTS_PER_SECOND = 50.0
"""Limit of the readings of all endpoints' lists together."""

RETRIES_PER_SECOND = 3.0
"""Limit for endpoints that failed more than once. A failed reading costs several times as much: at
ten a second, nearly one decision in a hundred waited for one."""

_RETRIED_TOGETHER = 3
_LOGGED_ADAPTERS = 10
_SETTLE_POLL_SECONDS = 0.02


class Scraper:
    """Runs a task for each endpoint from which the catalog needs readings."""

    def __init__(
        self,
        fleet: Fleet,
        publish: Callable[[Catalog], None],
        listener: ScrapeListener,
        rng: Random,
    ) -> None:
        """`publish` puts a catalog with found adapters in force, and then calls `set_models`."""
        self._fleet = fleet
        self._publish_catalog = publish
        self._catalog = Catalog()
        self._found = FoundAdapters(self._publish)
        self._shared = ScrapeContext(
            Client(),
            fleet.signals,
            fleet.ledger.loads,
            self._found,
            fleet.context_lengths,
            listener,
            FailureLog(fleet.signals.clock),
            rng,
            Pacer(METRICS_PER_SECOND, TOGETHER),
            Pacer(LISTS_PER_SECOND, TOGETHER),
            Pacer(RETRIES_PER_SECOND, _RETRIED_TOGETHER),
        )
        self._endpoints: dict[str, ScrapedEndpoint] = {}
        self._names: Mapping[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waking: asyncio.Task[None] | None = None
        self._shortest = 0.0

    def set_models(self, catalog: Catalog) -> None:
        """Read the endpoints of this catalog, and no others."""
        self._catalog = catalog
        wanted = plans(catalog)
        names = _names(catalog)
        self._keep_only([a for a in wanted if self._names.get(a) == names[a]], wanted)
        self._names = names
        self._fleet.signals.set_endpoints(wanted.keys())
        for address in self._endpoints:
            self._endpoints[address].set_plan(wanted[address])
        new = [address for address in wanted if address not in self._endpoints]
        for position, address in enumerate(new):
            self._start(address, wanted[address], position / FIRST_PER_SECOND)
        self._shortest = min((plan.busy for plan in wanted.values()), default=0.0)
        if wanted and self._waking is None:
            self._waking = asyncio.create_task(self._wake_busy_endpoints())

    async def settle(self, seconds: float) -> None:
        """Wait until every endpoint was read once, but no longer than `seconds`.

        Before that, the sidecar knows only the configured adapters and would refuse requests for
        all others.
        """
        deadline = self._fleet.signals.clock() + seconds
        while not all(endpoint.is_known for endpoint in self._endpoints.values()):
            if self._fleet.signals.clock() >= deadline:
                log.warning("some endpoints not read yet", extra=fields(waited=seconds))
                break
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
        self._found.flush()

    async def close(self) -> None:
        """Stop all readings."""
        self._found.close()
        tasks = self._tasks if self._waking is None else self._tasks | {self._waking}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._shared.client.close()

    def _keep_only(self, addresses: Collection[str], wanted: Mapping[str, Plan]) -> None:
        """Forget all other endpoints, and those whose address belongs to another pod now."""
        self._fleet.signals.set_endpoints(addresses)
        for address in self._endpoints.keys() - set(addresses):
            self._endpoints.pop(address).task.cancel()
            self._shared.failures.forget(address)
            self._shared.client.forget(address)
        listing = [address for address in addresses if wanted[address].adapters]
        self._found.keep_only(listing)
        self._fleet.context_lengths.keep_only(listing)

    def _start(self, address: str, plan: Plan, delay: float) -> None:
        self._endpoints[address] = scraped = ScrapedEndpoint(address, plan, self._shared, delay)
        self._tasks.add(scraped.task)
        scraped.task.add_done_callback(self._tasks.discard)

    async def _wake_busy_endpoints(self) -> None:
        """Wake endpoints that became busy; one loop for all is cheaper than one for each."""
        loads = self._fleet.ledger.loads
        while True:
            await asyncio.sleep(self._shortest / 2 or 1)
            for address in loads:
                endpoint = self._endpoints.get(address)
                if endpoint is not None:
                    endpoint.hurry()

    def _publish(self, found: Adapters) -> None:
        """Publish a catalog with these adapters; the router then calls `set_models`."""
        catalog = self._catalog
        if found != catalog.found:
            _log(catalog.found, found)
            self._publish_catalog(catalog.with_adapters(found))


def _names(catalog: Catalog) -> Mapping[str, str]:
    """Return the name of the endpoint at each address."""
    models = catalog.models.values()
    return {e.address: e.name for model in models for e in model.snapshot.endpoints}


def _log(before: Adapters, now: Adapters) -> None:
    changed = [a for a in before.keys() | now.keys() if before.get(a) != now.get(a)]
    added = _shown(changed, now, before)
    left = _shown(changed, before, now)
    log.info("adapters changed", extra=fields(endpoints=len(changed), came=added, left=left))


def _shown(addresses: Iterable[str], those: Adapters, without: Adapters) -> str:
    """Return adapters of these endpoints that only the first mapping has, some by name."""
    none: frozenset[str] = frozenset()
    names = {name for a in addresses for name in those.get(a, none) - without.get(a, none)}
    more = len(names) - _LOGGED_ADAPTERS
    shown = ", ".join(sorted(names)[:_LOGGED_ADAPTERS])
    return f"{shown} and {more} more" if more > 0 else shown
