"""Properties for any course of requests, endpoints and clocks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.routing.decision import Decision
from tests.core.flow_control.scene import Flow, Sent
from tests.extent import extent

CLASSES = [
    {"name": "chat", "priority": 1},
    {"name": "batch", "priority": -1, "maxQueued": 6, "maxWaitSeconds": 5},
]
objectives = st.sampled_from(["chat", "batch", ""])
tenants = st.sampled_from(["a", "b", "c"])
prompts = st.sampled_from([f"prompt {one}" for one in range(6)])
strategies = st.sampled_from(["LeastLoad", "PrefixHash", "PrefixCache"])
timeouts = st.sampled_from([None, None, 0.0, 1.0, 30.0])


class Requests(RuleBasedStateMachine):
    """Requests come, end and leave, while endpoints and limits change."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = Flow(strategy="PrefixHash", adapters=["sql"], maxQueued=12, classes=CLASSES)
        self.cancelled: list[Sent] = []

    @property
    def running(self) -> list[Sent]:
        sent = self.flow.sent
        return [one for one in sent if isinstance(one.outcome, Decision) and not one.ended]

    @property
    def waiting(self) -> list[Sent]:
        return [one for one in self.flow.sent if one.waits and one not in self.cancelled]

    @rule(
        name=prompts,
        objective=objectives,
        tenant=tenants,
        tokens=st.floats(1, 50_000),
        timeout=timeouts,
        model=st.sampled_from(["llama", "sql"]),
    )
    def send(
        self,
        name: str,
        objective: str,
        tenant: str,
        tokens: float,
        timeout: float | None,
        model: str,
    ) -> None:
        self.flow.send(
            name, objective=objective, tenant=tenant, tokens=tokens, timeout=timeout, model=model
        )

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.running)).end()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.waiting))
        assert sent.waiter is not None
        self.flow.control.cancel(sent.waiter)
        self.cancelled.append(sent)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.waiting))
        assert sent.waiter is not None
        self.flow.control.force(sent.waiter)

    @rule(number=st.integers(0, 4))
    def change_endpoints(self, number: int) -> None:
        self.flow.set_endpoints(number)

    @rule(limit=st.integers(1, 4), strategy=strategies)
    def change_configuration(self, limit: int, strategy: str) -> None:
        assert self.flow.flow is not None
        self.flow.flow["maxInflight"] = limit
        self.flow.strategy = strategy
        self.flow.publish()

    @rule(seconds=st.sampled_from([0.05, 1.0, 10.0]))
    def run(self, seconds: float) -> None:
        self.flow.now += seconds
        self.flow.run()

    @invariant()
    def no_request_is_lost_or_released_twice(self) -> None:
        control = self.flow.control
        assert control.waiting == len(self.waiting)
        queue = control.of("llama").queue
        assert sum(one.line.waiting for one in queue.classes.values()) == len(self.waiting)
        assert all(
            one.releases == (one.waiter is not None)
            for one in self.flow.sent
            if one.outcome is not None
        )
        assert not any(one.releases for one in self.cancelled)

    @invariant()
    def loads_are_those_of_the_running_requests(self) -> None:
        assert sum(self.flow.fleet.ledger.loads.values()) == len(self.running)

    @invariant()
    def bounds_hold(self) -> None:
        queue = self.flow.control.of("llama").queue
        assert queue.waiting <= 12
        if "batch" in queue.classes:
            assert queue.classes["batch"].line.waiting <= 6

    def teardown(self) -> None:
        """Dispatch or refuse every request in the end."""
        self.flow.set_endpoints(2)
        for _ in range(2_000):
            self.flow.now += 0.1
            self.flow.run()
            if not self.waiting:
                break
            if self.running:
                self.running[0].end()
        assert not self.waiting
        for one in self.running:
            one.end()
        assert dict(self.flow.fleet.ledger.loads) == {}
        assert not self.flow.control.of("llama").queue.everyone()


Requests.TestCase.settings = settings(
    max_examples=extent(20, 400), stateful_step_count=60, deadline=None
)
TestRequests = Requests.TestCase
