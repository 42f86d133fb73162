"""Two sidecars agree on the fleet after any course of requests."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.ledger import Lease
from extproc.core.sharing.peers import SILENT_SECONDS
from tests.core.sharing.sidecars import ADDRESSES, Sidecar, group, prompt, request
from tests.extent import extent

PROMPTS = [
    ("system", "one"),
    ("system", "one", "more"),
    ("system", "two"),
    ("other", "three", "four"),
    (),
]
ADAPTERS = ["", "sql", "chat"]

addresses = st.sampled_from(ADDRESSES[:3])
picks = st.integers(0, 1000)


class Courses(RuleBasedStateMachine):
    """The sidecar `here` has requests, and `there` only receives its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = group(2)
        self.leases: list[Lease] = []

    def pick(self, number: int) -> Lease:
        """Return one of the requests in flight."""
        return self.leases[number % len(self.leases)]

    @rule(
        address=addresses,
        words=st.sampled_from(PROMPTS),
        adapter=st.sampled_from(ADAPTERS),
        tokens=st.integers(0, 5000),
        cached=st.integers(0, 5000),
    )
    def send(
        self, address: str, words: tuple[str, ...], adapter: str, tokens: int, cached: int
    ) -> None:
        to_compute = 1 + max(0, tokens - cached)
        sent = request(*words, tokens=1 + tokens, to_compute=to_compute, adapter=adapter)
        self.leases.append(self.here.sends(address, sent))

    @rule(address=addresses)
    def send_without_a_prediction(self, address: str) -> None:
        sent = request("unpredicted", "prompt")._replace(tokens=None, to_compute=0.0)
        self.leases.append(self.here.sends(address, sent))

    @precondition(lambda self: self.leases)
    @rule(number=picks)
    def begin(self, number: int) -> None:
        self.pick(number).finish_prefill()

    @precondition(lambda self: self.leases)
    @rule(number=picks)
    def end(self, number: int) -> None:
        self.leases.pop(number % len(self.leases)).release()


class Reported(Courses):
    """Every batch arrives. A retry takes longer than the time between two batches."""

    @precondition(lambda self: self.leases)
    @rule(number=picks, address=addresses)
    def retry(self, number: int, address: str) -> None:
        self.report()
        self.pick(number).move(Endpoint(address, address))
        self.report()

    @rule(held=st.booleans())
    def report(self, held: bool = False) -> None:
        self.here.reports(self.there, held=held)

    @rule(seconds=st.floats(0.001, SILENT_SECONDS - 1))
    def pass_time(self, seconds: float) -> None:
        self.here.reports(self.there, held=True)
        self.here.clock.advance(seconds)
        self.there.peers.expire()

    @invariant()
    def agree(self) -> None:
        if not self.here.journal.is_empty:
            return
        here, there = self.here, self.there
        assert there.loads() == here.loads()
        assert there.backlog() == pytest.approx(here.backlog())
        assert there.contexts() == pytest.approx(here.contexts())
        signals = there.fleet.signals
        for words in PROMPTS:
            assert there.matches(*words) == here.matches(*words)
            for block in prompt(*words):
                copies, others = here.fleet.signals.copies, signals.copies
                assert others.demand(block) == pytest.approx(copies.demand(block))
        for address in ADDRESSES:
            assert there.requests(address) == here.requests(address)
            assert there.adapters(address) == here.adapters(address)


class Lost(Courses):
    """Some batches are lost or arrive twice, and `there` may forget or restart."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    @precondition(lambda self: self.leases)
    @rule(number=picks, address=addresses)
    def retry(self, number: int, address: str) -> None:
        self.pick(number).move(Endpoint(address, address))

    @rule(times=st.integers(0, 2), held=st.booleans())
    def report(self, times: int, held: bool) -> None:
        self.here.reports(*[self.there] * times, held=held)

    @rule(seconds=st.floats(0.001, 2 * SILENT_SECONDS))
    def be_silent(self, seconds: float) -> None:
        self.here.clock.advance(seconds)
        self.there.peers.expire()

    @rule()
    def restart_the_other(self) -> None:
        self.starts += 1
        self.there = Sidecar(f"b{self.starts}", self.here.clock)

    @rule()
    def agree_on_all_in_flight(self) -> None:
        self.here.reports(self.there, held=True)
        here, there = self.here, self.there
        assert there.loads() == here.loads()
        assert there.contexts() == pytest.approx(here.contexts())
        for address, tokens in there.backlog().items():
            assert tokens <= here.backlog().get(address, 0.0) + 1e-6

    def teardown(self) -> None:
        for lease in self.leases:
            lease.release()
        self.here.reports(self.there, held=True)
        assert (self.there.loads(), self.there.backlog(), self.there.contexts()) == ({}, {}, {})


class Several(RuleBasedStateMachine):
    """Three sidecars have requests on the same endpoints, and each receives all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sidecars = group(3)
        self.leases: list[Lease] = []

    @rule(number=st.integers(0, 2), address=addresses, words=st.sampled_from(PROMPTS))
    def send(self, number: int, address: str, words: tuple[str, ...]) -> None:
        self.leases.append(self.sidecars[number].sends(address, request(*words)))

    @precondition(lambda self: self.leases)
    @rule(number=picks, address=addresses)
    def retry(self, number: int, address: str) -> None:
        self.leases[number % len(self.leases)].move(Endpoint(address, address))

    @precondition(lambda self: self.leases)
    @rule(number=picks)
    def end(self, number: int) -> None:
        self.leases.pop(number % len(self.leases)).release()

    @rule(held=st.booleans())
    def agree(self, held: bool) -> None:
        for one in self.sidecars:
            one.reports(*(other for other in self.sidecars if other is not one), held=held)
        first, *others = self.sidecars
        assert sum(first.loads().values()) == len(self.leases)
        for other in others:
            assert other.loads() == first.loads()
            assert other.contexts() == pytest.approx(first.contexts())
            for words in PROMPTS:
                assert other.matches(*words) == first.matches(*words)


_settings = settings(max_examples=extent(25, 500), stateful_step_count=40)

TestReported = Reported.TestCase
TestReported.settings = _settings
TestLost = Lost.TestCase
TestLost.settings = _settings
TestSeveral = Several.TestCase
TestSeveral.settings = _settings
