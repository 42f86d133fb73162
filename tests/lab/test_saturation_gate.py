"""The simulated rule of llm-d holds requests by thresholds on readings."""

from __future__ import annotations

from extproc.core.flow_control.waiter import Arrival
from extproc.core.routing.decision import Decision
from extproc.lab.published_rules.saturation_gate import SaturationGate
from tests.core.flow_control.scene import Flow


class Gate:
    """A gate in front of two endpoints."""

    def __init__(self) -> None:
        self.flow = Flow(strategy="LeastLoad")
        self.gate = SaturationGate(self.flow.router, lambda: self.flow.now, {"chat": 1}, 10.0)
        self.order: list[str] = []

    def scrape(self, waiting: float) -> None:
        for address in self.flow.endpoints:
            self.flow.scrape(address, running=10, waiting=waiting)
            self.flow.now -= 0.2

    def send(self, name: str, objective: str = "", tenant: str = "") -> bool:
        """Send a request, and return True if it is decided at once."""
        resolved = self.flow.router.resolve("llama", None, {})
        arrival = Arrival(objective, tenant)
        found = self.gate.admit(resolved, arrival, lambda _: self.order.append(name))
        return isinstance(found, Decision)


def test_one_good_reading_admits_everything() -> None:
    gate = Gate()
    gate.scrape(waiting=0)
    assert all(gate.send(str(one)) for one in range(50))


def test_requests_wait_while_the_fleet_is_saturated() -> None:
    gate = Gate()
    gate.scrape(waiting=6)
    assert not gate.send("first")
    gate.gate.run()
    assert gate.gate.waiting == 1
    gate.scrape(waiting=1)
    gate.gate.run()
    assert gate.order == ["first"]


def test_old_readings_count_as_saturated() -> None:
    gate = Gate()
    gate.scrape(waiting=0)
    gate.flow.now += 1.0
    assert not gate.send("late")


def test_bands_are_strict_and_tenants_take_turns() -> None:
    gate = Gate()
    gate.scrape(waiting=6)
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        gate.send(name, tenant=tenant)
    gate.send("urgent", objective="chat")
    gate.scrape(waiting=0)
    gate.gate.run()
    assert gate.order == ["urgent", "a1", "b1", "a2", "a3"]
