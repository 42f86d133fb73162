"""A router with flow control, and requests whose course tests decide."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.report import Load, Report
from extproc.core.flow_control.flow_control import FlowControl
from extproc.core.flow_control.waiter import Arrival, Waiter
from extproc.core.request.refusals import Refusal
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec
from extproc.core.strategies import build

MODEL = "llama"


class Sent:
    """One request and its outcome."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiter: Waiter | None = None
        self.outcome: Decision | Refusal | None = None
        self.releases = 0
        self.ended = False

    def released(self, outcome: Decision | Refusal) -> None:
        """Take the outcome."""
        self.releases += 1
        self.outcome = outcome

    @property
    def waits(self) -> bool:
        return self.outcome is None and not self.ended

    @property
    def home(self) -> str:
        """The endpoint where the waiting request is warm."""
        assert self.waiter is not None
        (home,) = self.waiter.homes
        return home

    @property
    def address(self) -> str:
        """The endpoint that the request went to."""
        assert isinstance(self.outcome, Decision), self.outcome
        return self.outcome.address

    @property
    def code(self) -> str:
        """The code of the refusal; empty if there is none."""
        return self.outcome.code if isinstance(self.outcome, Refusal) else ""

    def end(self) -> None:
        """End the request, which is in flight."""
        assert isinstance(self.outcome, Decision)
        self.ended = True
        self.outcome.lease.release()


class Flow:
    """Flow control of one model. Its limit is one request on each endpoint."""

    def __init__(
        self,
        endpoints: int = 2,
        strategy: str = "LeastLoad",
        adapters: Sequence[str] = (),
        **flow: Any,
    ) -> None:
        self.now = 0.0
        self.fleet = Fleet(self._clock)
        self.router = Router(self.fleet)
        self.control = FlowControl(self.router, self._clock)
        self.woken = 0
        self.control.wake = self._wake
        self.strategy = strategy
        self.adapters = adapters
        self.flow: dict[str, Any] | None = {"maxInflight": 1, **flow}
        self.order: list[str] = []
        self.sent: list[Sent] = []
        self.set_endpoints(endpoints)

    def set_endpoints(self, number: int) -> None:
        """Give the model this number of endpoints."""
        self.endpoints = [f"10.0.0.{one + 1}:8000" for one in range(number)]
        self.publish()

    def publish(self, name: str = MODEL, aliases: Sequence[str] = ()) -> None:
        """Put the present configuration in force."""
        document: dict[str, Any] = {
            "name": name,
            "aliases": list(aliases),
            "endpoints": self.endpoints,
            "adapters": list(self.adapters),
            "loadBalancing": {"strategy": self.strategy},
        }
        if self.flow is not None:
            document["flowControl"] = self.flow
        spec = ModelSpec.model_validate(document)
        catalog = revise(
            self.router.catalog or Catalog(),
            [spec],
            lambda one: build(one, Random(0), self.fleet.signals),
        )
        self.router.publish(catalog)
        self.fleet.signals.set_endpoints(self.endpoints)

    def send(
        self,
        name: str = "",
        *,
        objective: str = "",
        tenant: str = "",
        tokens: float = 100.0,
        timeout: float | None = None,
        model: str = MODEL,
    ) -> Sent:
        """Send a request whose first message is its name."""
        sent = Sent(name)
        self.sent.append(sent)
        document = {"messages": [{"role": "user", "content": name}]} if name else None
        resolved = self.router.resolve(model, document, {})
        arrival = Arrival(objective, tenant, tokens, timeout)

        def released(outcome: Decision | Refusal) -> None:
            self.order.append(sent.name)
            sent.released(outcome)

        try:
            outcome = self.control.admit(resolved, arrival, released)
        except Refusal as refusal:
            sent.outcome = refusal
            return sent
        if isinstance(outcome, Waiter):
            sent.waiter = outcome
        else:
            sent.outcome = outcome
        return sent

    def fill(self) -> list[Sent]:
        """Use all room."""
        return [self.send(f"filling {one}") for one in range(len(self.endpoints))]

    def run(self) -> None:
        """Dispatch and refuse what is due."""
        while self.control.run():
            pass

    def scrape(self, address: str, *, running: float, waiting: float = 0.0) -> None:
        """Read an endpoint's metrics a moment later."""
        self.now += 0.2
        report = Report(Load(waiting, 0.5), running, block_size=16, blocks=10_000)
        inflight = self.fleet.ledger.loads.get(address, 0)
        self.fleet.signals.record_scrape(address, report, inflight)

    def _clock(self) -> float:
        return self.now

    def _wake(self) -> None:
        self.woken += 1
