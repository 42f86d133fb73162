"""Sidecars in this process that share their state through a real Valkey."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

from prometheus_client import CollectorRegistry

from extproc.adapters.observability.shared_state_metrics import SharedStateMetrics
from extproc.adapters.shared_state.link import SharedStateLink
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.ledger import Lease
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.sent_request import SentRequest
from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.core.sharing.sidecars import ADDRESSES, MODEL, A, prompt, request
from tests.extent import PATIENCE

KEY = "extproc"


class Linked:
    """A fleet and its link."""

    def __init__(
        self,
        server: SharedStateServer,
        clock: Callable[[], float] = monotonic,
        prompt_tokens: float = 1000,
    ) -> None:
        self.fleet = Fleet(clock)
        listed = [Endpoint(address, address) for address in ADDRESSES]
        self.fleet.set_models({MODEL: Snapshot.of(listed)})
        self.fleet.signals.set_endpoints(ADDRESSES)
        report = Report(Load(0, 0), 0, prompt_tokens=prompt_tokens)
        for address in ADDRESSES:
            self.fleet.signals.record_scrape(address, report, 0)
        self.registry = CollectorRegistry()
        self.link = SharedStateLink(server, self.fleet, SharedStateMetrics(self.registry), clock)

    def sends(self, address: str = A, sent: SentRequest | None = None) -> Lease:
        """Send a request, which is in flight until its lease is released."""
        return self.fleet.send(MODEL, Endpoint(address, address), sent or request("hello"))

    def loads(self) -> dict[str, int]:
        """Return the requests in flight of all known sidecars, by address."""
        return dict(self.fleet.ledger.loads)

    def matches(self, *words: str) -> dict[str, int]:
        """Return the cached leading blocks of a prompt, by address."""
        return dict(self.fleet.signals.prefixes.matches(prompt(*words)))

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample, without the prefix of its name; 0 if there is none."""
        return self.registry.get_sample_value(f"extproc_shared_state_{name}", labels) or 0.0

    @property
    def is_connected(self) -> bool:
        """True if all that report the connection say so."""
        document, metric = self.link.document()["connected"], self.metric("connected")
        assert document == bool(metric)
        return document

    async def has(self, loads: dict[str, int]) -> None:
        """Wait until the requests in flight are these."""
        try:
            await until(lambda: self.loads() == loads, PATIENCE, f"the loads {loads}")
        except TimeoutError as error:
            raise AssertionError(f"{error}, found {self.loads()}") from None

    async def connects(self) -> None:
        """Wait until the link is connected."""
        await until(lambda: self.is_connected, PATIENCE, "the connection")

    async def disconnects(self) -> None:
        """Wait until the link is not connected."""
        await until(lambda: not self.is_connected, PATIENCE, "the end of the connection")


def server_of(
    valkey: Valkey, key: str = KEY, password_file: Path | None = None
) -> SharedStateServer:
    """Return the server with a key, for a link."""
    return SharedStateServer(valkey.url, key, password_file)


@asynccontextmanager
async def linked(
    server: SharedStateServer,
    number: int = 2,
    clocks: Sequence[Callable[[], float]] = (),
    seconds: float = PATIENCE,
) -> AsyncIterator[list[Linked]]:
    """Start sidecars that share their state, and close them at the end of the context.

    Each waits no longer than `seconds` for the others' state.
    """
    sidecars = [Linked(server, clock) for clock in clocks or [monotonic] * number]
    try:
        for one in sidecars:
            await one.link.start(seconds)
        yield sidecars
    finally:
        for one in sidecars:
            await one.link.close()
