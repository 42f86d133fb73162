"""Watches the EndpointSlices of several Services with one list and one watch per namespace."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from extproc.adapters.kubernetes.api import Api
from extproc.adapters.kubernetes.objects import EndpointSlice
from extproc.adapters.kubernetes.reflector import Reflector, WatchListener
from extproc.adapters.kubernetes.resource import Resource
from extproc.adapters.observability.logs import fields

log = logging.getLogger("extproc.kubernetes")

SERVICE_NAME = "kubernetes.io/service-name"

# Proxies limit the length of a URL. A namespace with more Services is watched as a whole.
_LONGEST_SELECTOR = 2_000

Slices = tuple[EndpointSlice, ...]


@dataclass(eq=False)
class Subscription:
    """A subscriber to the slices of one Service."""

    service: str
    changed: Callable[[Slices], None]
    received: Slices | None = None
    """The slices that it received last; None before the first list that covers its Service."""


class SliceWatch:
    """A list and watch of the slices of some Services, or of all."""

    def __init__(
        self, selector: str, services: frozenset[str], reflector: Reflector[EndpointSlice]
    ):
        self.reflector = reflector
        self.task = asyncio.create_task(reflector.run())
        self._services = services
        self._all = selector == SERVICE_NAME

    def covers(self, services: Iterable[str]) -> bool:
        """Return True if it watches all these Services."""
        return self._all or self._services.issuperset(services)


class NamespaceSlices:
    """The slices of one namespace, for all subscribers.

    A subscriber of a new Service starts a wider watch. The narrower one continues until the wider
    one has listed, so the others lose nothing. A subscriber that leaves changes no watch.
    """

    def __init__(self, api: Api, namespace: str, listener: WatchListener, rng: Random) -> None:
        self._api = api
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._listener = listener
        self._rng = rng
        self._subscriptions: list[Subscription] = []
        self._known: dict[str, list[EndpointSlice]] = defaultdict(list)
        self._current: SliceWatch | None = None
        """The watch that has listed, and feeds the subscribers."""
        self._next: SliceWatch | None = None
        """The watch that replaces it as soon as it has listed."""
        self._stopping: set[asyncio.Task[None]] = set()

    def subscribe(self, service: str, changed: Callable[[Slices], None]) -> Subscription:
        """Add a subscriber; `start` begins to watch for it."""
        added = Subscription(service, changed)
        self._subscriptions.append(added)
        return added

    def start(self) -> SliceWatch:
        """Return the latest watch, which covers all subscribers; start it if necessary."""
        wanted = frozenset(one.service for one in self._subscriptions)
        latest = self._next or self._current
        if latest is None or not latest.covers(wanted):
            self._stop(self._next)
            latest = self._next = self._watch(wanted)
        elif latest is self._current:
            try:
                self._feed(latest)
            except Exception:
                # As in a reflector: an error of one subscriber must not stop the others.
                log.exception("unexpected error in a watch", extra=fields(path=self._path))
        return latest

    async def unsubscribe(self, leaving: Subscription) -> None:
        """Remove a subscriber; the last one stops the watches."""
        self._subscriptions.remove(leaving)
        if self._subscriptions:
            return
        self._stop(self._current)
        self._stop(self._next)
        self._current = self._next = None
        self._known.clear()
        if self._stopping:
            await asyncio.wait(self._stopping)

    def watch_of(self, subscription: Subscription) -> SliceWatch | None:
        """Return the watch that feeds a subscriber, or that will; None before `start`."""
        return self._next if subscription.received is None and self._next else self._current

    def _stop(self, watch: SliceWatch | None) -> None:
        if watch is not None:
            watch.task.cancel()
            self._stopping.add(watch.task)
            watch.task.add_done_callback(self._stopping.discard)

    def _watch(self, services: frozenset[str]) -> SliceWatch:
        selector = _selector(services)
        # The callback needs the watch, and the watch needs the reflector.
        made: list[SliceWatch] = []
        resource = Resource("endpointslices", self._path, EndpointSlice, label_selector=selector)
        take = partial(self._take, made)
        reflector = Reflector(self._api, resource, take, self._listener, self._rng)
        made.append(SliceWatch(selector, services, reflector))
        return made[0]

    def _take(self, made: list[SliceWatch], slices: Mapping[str, EndpointSlice]) -> None:
        watch = made[0]
        if watch is self._next:
            self._stop(self._current)
            self._current, self._next = watch, None
        self._known.clear()
        for one in slices.values():
            self._known[one.metadata.labels.get(SERVICE_NAME, "")].append(one)
        self._feed(watch)

    def _feed(self, watch: SliceWatch) -> None:
        """Give each subscriber that the watch covers the slices that it does not have yet."""
        for subscription in list(self._subscriptions):
            found = tuple(self._known.get(subscription.service, ()))
            if found != subscription.received and watch.covers((subscription.service,)):
                subscription.changed(found)
                # Not before: after an error it receives the slices of the next list.
                subscription.received = found


def _selector(services: frozenset[str]) -> str:
    names = ",".join(sorted(services))
    if len(services) == 1:
        return f"{SERVICE_NAME}={names}"
    return f"{SERVICE_NAME} in ({names})" if len(names) <= _LONGEST_SELECTOR else SERVICE_NAME
