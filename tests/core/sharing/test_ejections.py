"""Ejections, trials and returns that sidecars adopt from each other."""

from __future__ import annotations

import pytest

from extproc.core.fleet.ejection import FIRST_SECONDS, MOST_SECONDS
from extproc.core.fleet.outcome import Outcome
from extproc.core.sharing.batch import Batch
from extproc.core.sharing.peers import SILENT_SECONDS
from tests.core.sharing.sidecars import MODEL, A, B, C, D, Sidecar, all_report, group


class Watched(Sidecar):
    """A sidecar whose model has endpoints that fail or serve."""

    @property
    def ejected(self) -> set[str]:
        return set(self.fleet.ejection.ejected)

    @property
    def avoided(self) -> set[str]:
        """The endpoints that get no request now."""
        snapshot = self.fleet.models[MODEL]
        remaining = self.fleet.ejection.without_ejected(MODEL, snapshot, "")
        return {one.address for one in snapshot.endpoints if one not in remaining.endpoints}

    def fails(self, address: str = A) -> None:
        """Record enough failures for an ejection."""
        for _ in range(3):
            self.fleet.ejection.record(address, Outcome.RESET)

    def tries(self, address: str, outcome: Outcome | None = None) -> None:
        """Send a request to an endpoint, and record its outcome."""
        self.fleet.ejection.record(address, outcome, self.fleet.ejection.chosen(address))


@pytest.fixture
def sidecars() -> tuple[Watched, Watched]:
    (one,) = group(1)
    return Watched("a", one.clock), Watched("b", one.clock)


Sidecars = tuple[Watched, Watched]


class TestEjection:
    def test_holds_for_all_sidecars(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here)
        assert (here.ejected, here.avoided) == ({A}, {A})

    def test_lasts_as_long_as_at_the_sidecar_that_ejected(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        batch = peer.reports()
        here.clock.advance(0.5)
        here.peers.receive(batch, 0.5)
        here.clock.advance(FIRST_SECONDS - 0.6)
        assert here.avoided == peer.avoided == {A}
        here.clock.advance(0.2)
        assert here.avoided == peer.avoided == set()

    def test_that_is_over_is_not_adopted(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here, age=FIRST_SECONDS)
        assert here.ejected == set()

    def test_that_is_reported_late_ends_with_that_of_its_sidecar(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        here.clock.advance(FIRST_SECONDS - 1)
        peer.reports(here)
        here.clock.advance(0.9)
        assert here.avoided == peer.avoided == {A}
        here.clock.advance(0.2)
        assert here.avoided == peer.avoided == set()

    def test_that_is_over_before_it_is_reported_is_not_adopted(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        here.clock.advance(60)
        peer.reports(here)
        assert here.ejected == set()

    def test_that_is_reported_late_doubles_like_that_of_its_sidecar(
        self, sidecars: Sidecars
    ) -> None:
        here, peer = sidecars
        peer.fails(A)
        here.clock.advance(FIRST_SECONDS - 1)
        peer.reports(here)
        here.clock.advance(1)
        here.tries(A, Outcome.RESET)
        assert here.fleet.ejection.ejected[A].seconds == 2 * FIRST_SECONDS

    def test_after_a_return_in_the_same_batch_holds(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS + 1)
        peer.tries(A, Outcome.SERVED)
        peer.fails(A)
        peer.reports(here)
        assert here.avoided == peer.avoided == {A}

    def test_that_is_on_trial_when_it_is_reported_holds_until_the_result(
        self, sidecars: Sidecars
    ) -> None:
        here, peer = sidecars
        peer.fails(A)
        here.clock.advance(FIRST_SECONDS)
        peer.tries(A)
        here.clock.advance(1)
        peer.reports(here)
        assert here.avoided == {A}
        here.clock.advance(FIRST_SECONDS - 1)
        assert here.avoided == peer.avoided == set()

    def test_starts_no_count_of_failures(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        here.fleet.ejection.record(A, Outcome.RESET)
        here.fleet.ejection.record(A, Outcome.RESET)
        peer.fails(A)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS + 1)
        peer.tries(A, Outcome.SERVED)
        peer.reports(here)
        here.fleet.ejection.record(A, Outcome.RESET)
        assert here.ejected == set()

    def test_is_no_longer_than_the_longest(self, sidecars: Sidecars) -> None:
        here, _ = sidecars
        here.peers.receive(Batch("b", ["", A], ejected=[(1, 1e6)]), 0)
        here.clock.advance(MOST_SECONDS)
        assert here.avoided == set()

    def test_of_both_at_once_is_one(self, sidecars: Sidecars) -> None:
        for one in sidecars:
            one.fails(A)
        all_report(sidecars)
        assert [one.ejected for one in sidecars] == [{A}, {A}]
        sidecars[0].clock.advance(FIRST_SECONDS + 0.1)
        assert [one.avoided for one in sidecars] == [set(), set()]

    def test_is_forgotten_with_its_endpoint(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here)
        here.discovers([B, C])
        assert here.ejected == set()


class TestHalfRule:
    def test_limits_adopted_ejections(self, sidecars: Sidecars) -> None:
        here, _ = sidecars
        here.peers.receive(
            Batch("b", ["", A, B, C, D], ejected=[(place, 5.0) for place in range(1, 5)]), 0
        )
        assert here.ejected == {A, B}

    def test_holds_for_ejections_from_several_sidecars(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        here.fails(A)
        here.fails(B)
        peer.fails(C)
        peer.fails(D)
        all_report(sidecars)
        assert here.ejected == {A, B}
        assert peer.ejected == {C, D}

    def fails_and_returns(self, sidecars: Sidecars) -> None:
        """Let the peer eject A and B, and report that. Then A returns."""
        here, peer = sidecars
        peer.fails(A)
        peer.fails(B)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS + 1)
        peer.tries(A, Outcome.SERVED)

    def test_counts_the_returns_of_a_batch_first(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        self.fails_and_returns(sidecars)
        peer.fails(C)
        peer.reports(here)
        assert here.ejected == peer.ejected == {B, C}

    def test_prefers_no_side_after_returns(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        self.fails_and_returns(sidecars)
        peer.reports(here)
        here.fails(C)
        here.reports(peer)
        assert here.ejected == peer.ejected == {B, C}


class TestTrial:
    @pytest.fixture(autouse=True)
    def _ejected(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS + 0.1)

    def test_makes_the_others_wait_for_its_result(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.tries(A)
        peer.reports(here)
        assert here.avoided == {A}
        assert not here.fleet.ejection.ejected[A].on_trial

    def test_that_is_reported_late_is_ignored(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.tries(A)
        here.clock.advance(SILENT_SECONDS + 0.1)
        peer.reports(here)
        assert here.avoided == set()

    def test_that_succeeds_returns_the_endpoint_everywhere(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.tries(A, Outcome.SERVED)
        peer.reports(here)
        assert here.ejected == peer.ejected == set()

    def test_that_fails_doubles_the_time_everywhere(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.tries(A, Outcome.RESET)
        peer.reports(here)
        assert here.fleet.ejection.ejected[A].seconds == 2 * FIRST_SECONDS
        here.clock.advance(2 * FIRST_SECONDS - 0.1)
        assert here.avoided == {A}
        here.clock.advance(0.2)
        assert here.avoided == set()

    def test_of_a_silent_sidecar_is_repeated_later(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.tries(A)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS + 0.1)
        assert here.avoided == set()
        here.tries(A, Outcome.SERVED)
        assert here.ejected == set()

    def test_of_a_sidecar_succeeds_although_another_one_tries_too(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        sent = here.fleet.ejection.chosen(A)
        peer.tries(A)
        all_report(sidecars)
        here.fleet.ejection.record(A, Outcome.SERVED, sent)
        here.reports(peer)
        assert here.ejected == peer.ejected == set()

    def test_fails_although_another_ones_failed_before(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        sent = here.fleet.ejection.chosen(A)
        peer.tries(A, Outcome.RESET)
        peer.reports(here)
        before = here.fleet.ejection.ejected[A].until
        here.fleet.ejection.record(A, Outcome.RESET, sent)
        all_report(sidecars)
        for one in sidecars:
            assert one.ejected == {A}
            assert one.fleet.ejection.ejected[A].until >= before

    def test_that_fails_at_two_sidecars_at_once_doubles_once(self, sidecars: Sidecars) -> None:
        trials = [(one, one.fleet.ejection.chosen(A)) for one in sidecars]
        all_report(sidecars)
        for one, sent in trials:
            one.fleet.ejection.record(A, Outcome.RESET, sent)
            all_report(sidecars)
        for one in sidecars:
            assert one.fleet.ejection.ejected[A].seconds == 2 * FIRST_SECONDS

    def test_of_two_sidecars_serves_at_one_and_fails_at_the_other(self, sidecars: Sidecars) -> None:
        """The last result holds: an endpoint is never stuck between the two."""
        here, peer = sidecars
        trials = [one.fleet.ejection.chosen(A) for one in sidecars]
        all_report(sidecars)
        here.fleet.ejection.record(A, Outcome.RESET, trials[0])
        here.reports(peer)
        peer.fleet.ejection.record(A, Outcome.SERVED, trials[1])
        peer.reports(here)
        assert here.ejected == peer.ejected == set()


class TestReturn:
    def test_of_an_endpoint_in_service_is_ignored(self, sidecars: Sidecars) -> None:
        here, _ = sidecars
        here.peers.receive(Batch("b", ["", A], returned=[1]), 0)
        assert here.ejected == set()

    def test_does_not_cancel_a_newer_ejection(self, sidecars: Sidecars) -> None:
        here, _ = sidecars
        here.fails(A)
        here.peers.receive(Batch("b", ["", A], returned=[1]), 40)
        assert here.ejected == {A}

    def test_that_is_reported_late_does_not_cancel_a_newer_ejection(
        self, sidecars: Sidecars
    ) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.reports(here)
        here.clock.advance(FIRST_SECONDS)
        peer.tries(A, Outcome.SERVED)
        here.clock.advance(SILENT_SECONDS + 0.1)
        here.tries(A, Outcome.RESET)
        peer.reports(here)
        assert here.ejected == {A}

    def test_cancels_an_older_ejection_in_batches_from_before_a_start(
        self, sidecars: Sidecars
    ) -> None:
        here, _ = sidecars
        here.peers.receive(Batch("b", ["", A], ejected=[(1, MOST_SECONDS)]), 50)
        assert here.ejected == {A}
        here.peers.receive(Batch("b", ["", A], returned=[1]), 40)
        assert here.ejected == set()

    def test_because_too_many_were_ejected_holds_everywhere(self, sidecars: Sidecars) -> None:
        here, peer = sidecars
        peer.fails(A)
        peer.fails(B)
        peer.reports(here)
        peer.discovers([A, B, C])
        peer.reports(here)
        assert len(peer.ejected) == 1
        assert here.ejected == peer.ejected

    def test_lets_failures_count_from_zero(self, sidecars: Sidecars) -> None:
        here, _ = sidecars
        here.fleet.ejection.record(A, Outcome.RESET)
        here.fleet.ejection.record(A, Outcome.RESET)
        here.peers.receive(Batch("b", ["", A], returned=[1]), 0)
        here.fleet.ejection.record(A, Outcome.RESET)
        assert here.ejected == set()
