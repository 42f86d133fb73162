"""Endpoints that fail are avoided for a while, and return slowly."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.ejection import FAILURES, FIRST_SECONDS, MOST_SECONDS, Ejected, Ejection
from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.subset import subset_of
from tests.core.builders import endpoints, thorough
from tests.core.clock import Clock

EjectionEvent = tuple[str, Collection[str], str]


class Scene:
    """One model with its endpoints, and a listener that records events."""

    def __init__(self, count: int, *, adapter_on: Collection[int] = ()) -> None:
        self.clock = Clock()
        self.ejection = Ejection(self.clock)
        self.ejection.listeners.append(self)
        self.endpoints = [
            Endpoint(one.address, one.name, frozenset({"sql"} if i in adapter_on else ()))
            for i, one in enumerate(endpoints(count))
        ]
        self.addresses = [one.address for one in self.endpoints]
        self.events: list[EjectionEvent] = []
        self.lengths: list[float] = []
        self.trials: list[str] = []
        self.has(*self.endpoints)

    def has(self, *those: Endpoint) -> None:
        """Set the discovered endpoints."""
        self.snapshot = Snapshot.of(those)
        self.ejection.set_models({"llama": self.snapshot})

    def ejected(self, models: Collection[str], address: str, why: Outcome, seconds: float) -> None:
        self.events.append((address, models, why))
        self.lengths.append(seconds)

    def tried(self, models: Collection[str], address: str) -> None:
        self.trials.append(address)

    def returned(self, models: Collection[str], address: str) -> None:
        self.events.append((address, models, "returned"))

    def fails(self, place: int, times: int, how: Outcome = Outcome.RESET) -> None:
        """Record consecutive failures of requests from before any ejection."""
        for _ in range(times):
            self.ejection.record(self.addresses[place], how)

    def serves(self, place: int) -> None:
        self.ejection.record(self.addresses[place], Outcome.SERVED)

    def eject(self, *places: int) -> None:
        for place in places:
            self.fails(place, 3)

    def try_again(self, place: int) -> Ejected:
        """Send a request to an ejected endpoint."""
        sent = self.ejection.chosen(self.addresses[place])
        assert sent is not None
        return sent

    def out(self) -> set[int]:
        """Return the numbers of the ejected endpoints."""
        return {self.addresses.index(address) for address in self.ejection.ejected}

    def in_service(self, adapter: str = "") -> Snapshot:
        return self.ejection.without_ejected("llama", self.snapshot, adapter)

    def eligible(self, adapter: str = "") -> set[int]:
        """Return the numbers of the eligible endpoints."""
        return {self.addresses.index(e.address) for e in self.in_service(adapter).eligible(adapter)}


class TestEjecting:
    @pytest.mark.parametrize(("how", "times"), FAILURES.items())
    def test_ejects_after_consecutive_failures(self, how: Outcome, times: int) -> None:
        fleet = Scene(2)
        fleet.fails(0, times - 1, how)
        assert fleet.out() == set()
        fleet.fails(0, 1, how)
        assert fleet.out() == {0}
        assert fleet.events == [(fleet.addresses[0], ["llama"], how)]
        assert fleet.lengths == [FIRST_SECONDS]

    def test_restarts_the_count_after_a_success(self) -> None:
        fleet = Scene(2)
        for _ in range(10):
            fleet.fails(0, 2)
            fleet.serves(0)
        assert fleet.out() == set()

    def test_ignores_unknown_outcomes(self) -> None:
        fleet = Scene(2)
        for _ in range(20):
            fleet.ejection.record(fleet.addresses[0], None)
        assert fleet.out() == set()

    def test_uses_the_limit_of_the_last_kind_of_failure(self) -> None:
        fleet = Scene(2)
        fleet.fails(0, 3, Outcome.ERROR)
        assert fleet.out() == set()
        fleet.fails(0, 1, Outcome.RESET)
        assert fleet.out() == {0}

    def test_ignores_endpoints_of_no_model(self) -> None:
        fleet = Scene(2)
        for _ in range(20):
            fleet.ejection.record("10.9.9.9:1", Outcome.ERROR)
        assert fleet.events == []

    def test_forgets_an_endpoint_that_leaves(self) -> None:
        fleet = Scene(4)
        fleet.eject(0)
        fleet.fails(1, 2)
        fleet.has(*fleet.endpoints[2:])
        fleet.has(*fleet.endpoints)
        assert fleet.out() == set()
        fleet.fails(1, 2)
        assert fleet.out() == set()

    def test_keeps_ejections_when_other_endpoints_change(self) -> None:
        fleet = Scene(4)
        fleet.eject(0)
        fleet.has(*fleet.endpoints[:3])
        assert fleet.out() == {0}
        assert fleet.eligible() == {1, 2}


class TestEjectedEndpoint:
    def test_is_avoided_until_the_ejection_time_is_over(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.clock.advance(FIRST_SECONDS - 0.001)
        assert fleet.eligible() == {0, 2}
        fleet.clock.advance(0.001)
        assert fleet.eligible() == {0, 1, 2}
        assert fleet.out() == {1}

    def test_gets_one_trial_per_ejection_time(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.clock.advance(FIRST_SECONDS)
        fleet.try_again(1)
        fleet.clock.advance(FIRST_SECONDS - 0.001)
        assert fleet.eligible() == {0, 2}
        fleet.clock.advance(0.001)
        assert fleet.eligible() == {0, 1, 2}

    def test_returns_to_service_after_a_successful_trial(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.clock.advance(FIRST_SECONDS)
        sent = fleet.try_again(1)
        fleet.ejection.record(fleet.addresses[1], Outcome.SERVED, sent)
        assert fleet.out() == set()
        assert fleet.eligible() == {0, 1, 2}
        assert fleet.events[-1] == (fleet.addresses[1], ["llama"], "returned")
        fleet.eject(1)
        assert fleet.lengths == [FIRST_SECONDS, FIRST_SECONDS]

    def test_doubles_the_ejection_time_after_a_failed_trial_up_to_a_limit(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        for _ in range(6):
            fleet.clock.advance(fleet.lengths[-1])
            fleet.ejection.record(fleet.addresses[1], Outcome.TIMEOUT, fleet.try_again(1))
            assert fleet.eligible() == {0, 2}
        assert fleet.lengths == [5, 10, 20, 40, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]

    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_ignores_requests_from_before_the_ejection(self, outcome: Outcome) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.clock.advance(FIRST_SECONDS)
        fleet.ejection.record(fleet.addresses[1], outcome)
        assert fleet.out() == {1}
        assert fleet.lengths == [FIRST_SECONDS]

    def test_is_not_ejected_for_longer_by_a_failure_without_a_trial(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        for _ in range(5):
            fleet.ejection.record(fleet.addresses[1], Outcome.RESET, fleet.try_again(1))
        assert fleet.lengths == [FIRST_SECONDS]
        fleet.clock.advance(FIRST_SECONDS)
        assert fleet.eligible() == {0, 1, 2}

    def test_returns_to_service_after_a_success_without_a_trial(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.ejection.record(fleet.addresses[1], Outcome.SERVED, fleet.try_again(1))
        assert fleet.out() == set()

    def test_counts_several_failures_of_one_trial_once(self) -> None:
        fleet = Scene(3)
        fleet.eject(1)
        fleet.clock.advance(FIRST_SECONDS)
        together = [fleet.try_again(1) for _ in range(5)]
        for sent in together:
            fleet.ejection.record(fleet.addresses[1], Outcome.RESET, sent)
        assert fleet.lengths == [FIRST_SECONDS, 2 * FIRST_SECONDS]

    def test_is_the_fallback_if_there_is_no_other(self) -> None:
        fleet = Scene(4)
        fleet.eject(2)
        fleet.clock.advance(1)
        fleet.eject(1)
        one, two, three, four = fleet.endpoints
        assert fleet.ejection.last_resort([one, two, three], one.address) == three.address
        assert fleet.ejection.last_resort([two, three], three.address) == two.address
        assert fleet.ejection.last_resort([three], three.address) is None
        assert fleet.ejection.last_resort([one, four], one.address) is None


class TestEndpointsInService:
    def test_are_at_least_half_of_the_endpoints(self) -> None:
        for count, most in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (200, 100)]:
            fleet = Scene(count)
            fleet.eject(*range(count))
            assert len(fleet.out()) == most
            assert len(fleet.eligible()) == count - most

    def test_are_at_least_half_of_every_model_that_lists_the_endpoint(self) -> None:
        fleet = Scene(4)
        few = Snapshot.of(fleet.endpoints[:1])
        fleet.ejection.set_models({"llama": fleet.snapshot, "few": few})
        fleet.eject(0, 1)
        assert fleet.out() == {1}

    def test_are_half_again_after_the_model_shrinks(self) -> None:
        fleet = Scene(6)
        for place in (2, 0, 1):
            fleet.eject(place)
            fleet.clock.advance(0.5)
        fleet.has(*fleet.endpoints[:4])
        assert fleet.out() == {0, 1}
        assert fleet.events[-1] == (fleet.addresses[2], ["llama"], "returned")
        fleet.has(fleet.endpoints[1])
        assert fleet.out() == set()

    def test_can_be_ejected_after_another_returns(self) -> None:
        fleet = Scene(2)
        fleet.eject(0, 1)
        assert fleet.out() == {0}
        fleet.ejection.record(fleet.addresses[0], Outcome.SERVED, fleet.try_again(0))
        fleet.fails(1, 1)
        assert fleet.out() == {1}

    def test_without_the_adapter_leave_the_request_to_the_ejected_endpoint(self) -> None:
        fleet = Scene(4, adapter_on=[1])
        fleet.eject(1)
        assert fleet.eligible() == {0, 2, 3}
        assert fleet.eligible("sql") == {1}

    def test_outside_the_subset_leave_the_request_to_the_ejected_endpoint(self) -> None:
        fleet = Scene(4)
        fleet.eject(1)
        for places, left in [((1,), {1}), ((1, 2), {2}), ((0, 3), {0, 3})]:
            allowed = fleet.snapshot.restricted(
                subset_of(tuple(fleet.addresses[place] for place in places))
            )
            spared = fleet.ejection.without_ejected("llama", allowed, "")
            assert {fleet.addresses.index(e.address) for e in spared.endpoints} == left


class TestSnapshotWithoutEjected:
    def test_keeps_the_home_endpoint_of_each_prefix(self) -> None:
        fleet = Scene(6)
        before = [next(fleet.in_service().walk(key << 57, "")) for key in range(100)]
        fleet.eject(4)
        after = [next(fleet.in_service().walk(key << 57, "")) for key in range(100)]
        gone = fleet.endpoints[4]
        assert gone in before
        assert gone not in after
        assert all(was in (now, gone) for was, now in zip(before, after, strict=True))

    def test_is_cached(self) -> None:
        fleet = Scene(6)
        fleet.eject(4)
        first = fleet.in_service()
        fleet.clock.advance(1)
        assert fleet.in_service() is first
        assert fleet.in_service("no-such-adapter") is fleet.snapshot
        assert fleet.in_service() is first

    def test_is_rebuilt_when_endpoints_or_ejections_change(self) -> None:
        fleet = Scene(6)
        fleet.eject(4)
        assert fleet.eligible() == {0, 1, 2, 3, 5}
        fleet.has(*fleet.endpoints[1:])
        assert fleet.eligible() == {1, 2, 3, 5}
        fleet.eject(5)
        assert fleet.eligible() == {1, 2, 3}

    def test_is_the_same_object_if_no_endpoint_is_ejected(self) -> None:
        fleet = Scene(4)
        other = Snapshot.of(endpoints(8)[4:])
        fleet.ejection.set_models({"llama": fleet.snapshot, "other": other})
        fleet.eject(0)
        assert fleet.ejection.without_ejected("other", other, "") is other


@thorough
@given(st.data())
def test_any_events_leave_half_in_service_and_a_success_ends_an_ejection(
    data: st.DataObject,
) -> None:
    fleet = Scene(data.draw(st.integers(1, 6), "endpoints"), adapter_on=[0])
    sent: list[tuple[int, Ejected | None]] = []
    for _ in range(data.draw(st.integers(1, 60), "steps")):
        place = data.draw(st.integers(0, len(fleet.addresses) - 1), "place")
        step = data.draw(st.sampled_from(["send", "hear", "hear", "wait", "discover"]), "step")
        if step == "send":
            sent.append((place, fleet.ejection.chosen(fleet.addresses[place])))
        elif step == "hear" and sent:
            where, ejected = sent.pop(data.draw(st.integers(0, len(sent) - 1), "which"))
            outcome = data.draw(st.sampled_from([*Outcome, None]), "outcome")
            fleet.ejection.record(fleet.addresses[where], outcome, ejected)
        elif step == "wait":
            before = fleet.eligible()
            fleet.clock.advance(data.draw(st.floats(0, 30), "seconds"))
            assert before <= fleet.eligible(), "time only brings back"
        elif step == "discover":
            fleet.has(*fleet.endpoints[: place + 1])
        present = fleet.snapshot.endpoints
        assert len(fleet.out()) <= len(present) // 2
        assert fleet.eligible()
        assert fleet.eligible("sql") == {0}
        assert fleet.ejection.ejected.keys() <= {one.address for one in present}
    fleet.has(*fleet.endpoints)
    for place, address in enumerate(fleet.addresses):
        fleet.ejection.record(address, Outcome.SERVED, fleet.ejection.chosen(address))
        assert place in fleet.eligible()
    assert fleet.out() == set()
