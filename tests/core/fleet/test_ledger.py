from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from extproc.core.fleet.backlog import Backlog
from extproc.core.fleet.contexts import Contexts, Stored
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.speeds import Speeds
from tests.core.builders import endpoint
from tests.core.clock import Clock
from tests.extent import extent

A, B = endpoint("10.0.0.1:8000"), endpoint("10.0.0.2:8000")


def test_lease_counts_until_its_release() -> None:
    ledger = Ledger()
    lease = ledger.acquire("llama", A)
    assert dict(ledger.loads) == {A.address: 1}
    lease.release()
    assert dict(ledger.loads) == {}


def test_second_release_does_nothing() -> None:
    ledger = Ledger()
    lease, other = ledger.acquire("llama", A), ledger.acquire("llama", A)
    lease.release()
    lease.release()
    assert dict(ledger.loads) == {A.address: 1}
    other.release()
    assert dict(ledger.loads) == {}
    assert list(ledger.held()) == []


def test_endpoint_of_two_models_has_one_load_and_two_holders() -> None:
    ledger = Ledger()
    ledger.acquire("llama", A)
    ledger.acquire("qwen", A)
    ledger.acquire("qwen", A)
    assert dict(ledger.loads) == {A.address: 3}
    assert sorted((model, e.address, n) for model, e, n in ledger.held()) == [
        ("llama", A.address, 1),
        ("qwen", A.address, 2),
    ]


def test_moved_lease_counts_on_the_new_endpoint_only() -> None:
    ledger = Ledger()
    lease = ledger.acquire("llama", A)
    lease.move(B)
    assert dict(ledger.loads) == {B.address: 1}
    assert list(ledger.held()) == [("llama", B, 1)]
    lease.release()
    assert dict(ledger.loads) == {}


def test_lease_that_moves_to_its_own_endpoint_counts_there_once() -> None:
    ledger = Ledger()
    lease = ledger.acquire("llama", A)
    lease.move(B)
    lease.move(B)
    assert ledger.totals.of(B.address).sent == 1
    assert dict(ledger.loads) == {B.address: 1}


def test_released_lease_keeps_no_prompt() -> None:
    lease = Ledger().acquire("llama", A)
    lease.request = SentRequest(chains=[[1, 2, 3]])
    lease.release()
    assert lease.request is None


def test_released_lease_does_not_move() -> None:
    ledger = Ledger()
    lease = ledger.acquire("llama", A)
    lease.release()
    lease.move(B)
    assert dict(ledger.loads) == {}
    assert lease.endpoint is A


addresses = st.sampled_from(["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"])


class LedgerMachine(RuleBasedStateMachine):
    """Acquire, move and release leases in any order, and compare with a plain count."""

    leases = Bundle("leases")
    released = Bundle("released")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.out: list[Lease] = []

    @rule(
        target=leases,
        model=st.sampled_from(["llama", "qwen"]),
        address=addresses,
        adapter=st.sampled_from(["", "sql"]),
    )
    def acquire(self, model: str, address: str, adapter: str) -> Lease:
        # The same address may return as another endpoint object.
        lease = self.ledger.acquire(model, endpoint(address, adapter))
        self.out.append(lease)
        return lease

    @rule(lease=leases, address=addresses)
    def move(self, lease: Lease, address: str) -> None:
        lease.move(endpoint(address))
        assert lease.endpoint.address == address

    @rule(lease=released, address=addresses)
    def move_too_late(self, lease: Lease, address: str) -> None:
        lease.move(endpoint(address))

    @rule(target=released, lease=consumes(leases))
    def release(self, lease: Lease) -> Lease:
        lease.release()
        self.out.remove(lease)
        return lease

    @rule(lease=released)
    def release_again(self, lease: Lease) -> None:
        lease.release()

    @invariant()
    def loads_match_the_held_leases(self) -> None:
        assert dict(self.ledger.loads) == Counter(lease.endpoint.address for lease in self.out)

    @invariant()
    def held_separates_models(self) -> None:
        held = {(model, e.address): n for model, e, n in self.ledger.held()}
        assert held == Counter((lease.model, lease.endpoint.address) for lease in self.out)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=extent(15, 100))


class TestPrefillOfLease:
    """The prompt counts from the lease's start to the response's beginning."""

    def scene(self) -> tuple[Backlog, Lease]:
        backlog = Backlog(Speeds(Clock()))
        lease = Ledger().acquire("llama", A)
        lease.prefill = backlog.add(A.address, 100)
        return backlog, lease

    def test_ends_when_the_response_begins(self) -> None:
        backlog, lease = self.scene()
        lease.finish_prefill()
        assert dict(backlog.tokens) == {}

    def test_ends_with_the_lease(self) -> None:
        backlog, lease = self.scene()
        lease.release()
        assert dict(backlog.tokens) == {}

    def test_moves_with_the_lease(self) -> None:
        backlog, lease = self.scene()
        lease.move(B)
        assert dict(backlog.tokens) == {B.address: 100}
        lease.finish_prefill()
        assert dict(backlog.tokens) == {}

    def test_does_not_move_after_the_response_began_or_the_lease_ended(self) -> None:
        backlog, lease = self.scene()
        lease.finish_prefill()
        lease.move(B)
        assert dict(backlog.tokens) == {}
        backlog, lease = self.scene()
        lease.release()
        lease.move(B)
        assert dict(backlog.tokens) == {}

    def test_finishes_with_those_before_it_but_is_canceled_alone(self) -> None:
        for begins, left in ((True, 3), (False, 103)):
            backlog, first = self.scene()
            second, third = (Ledger().acquire("llama", A) for _ in range(2))
            second.prefill = backlog.add(A.address, 20)
            third.prefill = backlog.add(A.address, 3)
            if begins:
                second.finish_prefill()
            else:
                second.release()
            assert dict(backlog.tokens) == {A.address: left}
            first.release()
            assert dict(backlog.tokens) == {A.address: 3}

    def test_can_end_any_number_of_times(self) -> None:
        backlog, lease = self.scene()
        for _ in range(2):
            lease.finish_prefill()
            lease.release()
        assert dict(backlog.tokens) == {}

    def test_is_none_without_a_prediction(self) -> None:
        lease = Ledger().acquire("llama", A)
        assert lease.prefill is None
        lease.finish_prefill()
        lease.move(B)
        lease.release()


def test_prompt_counts_where_its_request_runs_until_the_release() -> None:
    ledger, contexts = Ledger(), Contexts(lambda: 0.0)
    lease = ledger.acquire("llama", A)
    lease.context = contexts.begin(A.address, Stored(1), 100)
    lease.move(B)
    assert [contexts.totals.of(one.address).context for one in (A, B)] == [0, 100]
    lease.release()
    lease.release()
    assert contexts.totals.of(B.address).is_idle


def test_session_pauses_once_after_the_release() -> None:
    ledger, contexts = Ledger(), Contexts(lambda: 0.0)
    lease = ledger.acquire("llama", A)
    lease.context = contexts.begin(A.address, Stored(1), 100)
    lease.release()
    lease.release()
    assert contexts.totals.of(A.address).paused == 1
