"""Requests of peers that the metrics of engines show as well."""

from __future__ import annotations

import pytest

from extproc.core.fleet.backlog import STEP_TOKENS
from extproc.core.fleet.report import Load, Report
from extproc.core.fleet.weights import WEIGHTS
from tests.core.sharing.sidecars import A, Sidecar, group, request


class Engine:
    """An engine whose requests in the batch are those of all senders."""

    def __init__(self) -> None:
        self.running = 0
        self.first_tokens = 0.0
        self.finished = 0.0

    def is_read_by(self, sidecar: Sidecar) -> None:
        signals = sidecar.fleet.signals
        report = Report(
            Load(0, 0), self.running, first_tokens=self.first_tokens, finished=self.finished
        )
        signals.record_scrape(A, report, sidecar.fleet.ledger.loads.get(A, 0))


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def sidecars() -> tuple[Sidecar, Sidecar]:
    here, peer = group(2)
    return here, peer


Sidecars = tuple[Sidecar, Sidecar]


def requests_on(sidecar: Sidecar) -> float:
    """Return all requests on the endpoint, as a strategy sees them."""
    return sidecar.requests(A)


def tokens_on(sidecar: Sidecar) -> float:
    """Return all tokens to compute on the endpoint, as a strategy sees them."""
    return sidecar.fleet.signals.totals.of(A).backlog


class TestRequestOfPeer:
    def test_that_was_known_before_the_scrape_counts_once(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        peer.sends(A)
        engine.running = 1
        peer.reports(here)
        engine.is_read_by(here)
        assert requests_on(here) == 1

    def test_that_was_scraped_before_it_was_known_counts_once(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        peer.sends(A)
        engine.running = 1
        here.clock.advance(0.01)
        engine.is_read_by(here)
        assert requests_on(here) == 1
        here.clock.advance(0.01)
        peer.reports(here)
        assert requests_on(here) == 1

    def test_that_was_sent_after_the_scrape_is_added(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        engine.running = 1  # of another client
        engine.is_read_by(here)
        here.clock.advance(0.01)
        peer.sends(A)
        peer.reports(here)
        assert requests_on(here) == 2

    def test_counts_once_while_its_endpoint_has_others_too(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        for _ in range(3):
            peer.sends(A)
        here.sends(A)
        engine.running = 9
        here.clock.advance(0.01)
        engine.is_read_by(here)
        assert requests_on(here) == 9
        peer.reports(here)
        assert requests_on(here) == 9
        assert here.loads() == {A: 4}

    def test_is_not_subtracted_twice(self, sidecars: Sidecars, engine: Engine) -> None:
        here, peer = sidecars
        peer.sends(A)
        engine.running = 3
        here.clock.advance(0.01)
        engine.is_read_by(here)
        peer.reports(here, here)
        peer.reports(here, held=True)
        assert requests_on(here) == 3

    def test_that_only_a_list_of_requests_in_flight_reports_counts_once(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        peer.sends(A)
        engine.running = 1
        here.clock.advance(0.01)
        engine.is_read_by(here)
        here.clock.advance(1)
        peer.reports()
        peer.reports(here, held=True)
        assert requests_on(here) == 1

    def test_has_its_own_tokens_instead_of_a_mean_prompt(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        # A first reading, by which later ones count requests without a first token.
        engine.is_read_by(here)
        here.sends(A, request("x", to_compute=1000)).release()
        here.clock.advance(0.01)
        peer.sends(A, request("y", to_compute=300))
        engine.running = 1
        here.clock.advance(0.01)
        engine.is_read_by(here)
        assert tokens_on(here) == pytest.approx(WEIGHTS.others * 1000)
        peer.reports(here)
        assert tokens_on(here) == STEP_TOKENS + 300

    def test_is_no_other_request_in_the_share_of_others(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        for _ in range(4):
            peer.sends(A)
        engine.running = 4
        here.clock.advance(0.01)
        engine.is_read_by(here)
        assert here.fleet.signals.pressure.share_of_others == 1
        peer.reports(here)
        assert here.fleet.signals.pressure.share_of_others == 0


class TestRequestThatCamePastAllSidecars:
    def test_still_counts(self, sidecars: Sidecars, engine: Engine) -> None:
        here, peer = sidecars
        peer.sends(A)
        peer.reports(here)
        engine.running = 3
        engine.is_read_by(here)
        assert requests_on(here) == 3

    def test_still_counts_after_requests_of_peers_became_known(
        self, sidecars: Sidecars, engine: Engine
    ) -> None:
        here, peer = sidecars
        engine.running = 5  # two of the peer, three of others
        leases = [peer.sends(A) for _ in range(2)]
        here.clock.advance(0.01)
        engine.is_read_by(here)
        peer.reports(here)
        assert requests_on(here) == 5
        for lease in leases:
            lease.release()
        peer.reports(here)
        assert requests_on(here) == 3

    def test_is_not_less_than_none(self, sidecars: Sidecars, engine: Engine) -> None:
        here, peer = sidecars
        for _ in range(5):
            peer.sends(A)
        engine.running = 2  # the others have not arrived
        here.clock.advance(0.01)
        engine.is_read_by(here)
        peer.reports(here)
        assert requests_on(here) == 5


class TestReading:
    def test_knows_the_requests_that_became_known(self, sidecars: Sidecars, engine: Engine) -> None:
        here, peer = sidecars
        for _ in range(3):
            peer.sends(A)
        engine.running = 2
        here.clock.advance(0.01)
        engine.is_read_by(here)
        peer.reports(here)
        reading = here.fleet.signals.latest(A)
        assert reading is not None
        assert reading.ours == 2

    def test_is_unchanged_by_later_requests(self, sidecars: Sidecars, engine: Engine) -> None:
        here, peer = sidecars
        engine.running = 2
        engine.is_read_by(here)
        before = here.fleet.signals.latest(A)
        here.clock.advance(0.01)
        peer.sends(A)
        peer.reports(here)
        assert here.fleet.signals.latest(A) == before
