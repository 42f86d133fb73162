"""The requests of other sidecars."""

from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.sent_request import NOTHING_SENT
from extproc.core.sharing import peers as sharing
from extproc.core.sharing.batch import Batch
from extproc.core.sharing.peers import SILENT_SECONDS
from tests.core.sharing.sidecars import (
    MODEL,
    UNKNOWN,
    A,
    B,
    Sidecar,
    group,
    prompt,
    request,
)


@pytest.fixture
def pair() -> tuple[Sidecar, Sidecar]:
    one, two = group(2)
    return one, two


Pair = tuple[Sidecar, Sidecar]


class TestRequestOfPeer:
    def test_counts_until_it_ends(self, pair: Pair) -> None:
        here, peer = pair
        here.sends(A)
        lease = peer.sends(A)
        peer.reports(here)
        assert here.loads() == {A: 2}
        lease.release()
        peer.reports(here)
        assert here.loads() == {A: 1}

    def test_is_not_one_of_ours(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.reports(here)
        assert here.fleet.ledger.ours() == {}
        assert list(here.fleet.ledger.held()) == []

    def test_has_prompt_tokens_to_compute_until_its_response_begins(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A, request("x", tokens=50, to_compute=30))
        peer.reports(here)
        assert (here.backlog(), here.contexts()) == ({A: 30}, {A: 50})
        lease.finish_prefill()
        peer.reports(here)
        assert (here.backlog(), here.contexts()) == ({}, {A: 50})
        lease.release()
        peer.reports(here)
        assert here.contexts() == {}

    def test_without_a_prediction_only_counts(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, NOTHING_SENT)
        peer.reports(here)
        assert here.loads() == {A: 1}
        assert (here.backlog(), here.contexts()) == ({}, {})

    def test_leaves_its_prompt_in_the_prefix_index(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", "y")).release()
        peer.reports(here)
        assert here.matches("x", "y", "z") == {A: 2}

    def test_leaves_its_turn_there(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x")._replace(turn=7))
        peer.reports(here)
        assert here.fleet.signals.turns.endpoint_of(7) == A

    def test_leaves_its_adapter_in_memory(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", adapter="sql"))
        peer.reports(here)
        assert here.adapters(A) == ["sql"]

    def test_is_a_use_of_its_prefix(self, pair: Pair) -> None:
        here, peer = pair
        for _ in range(3):
            peer.sends(A, request("x", "y"))
        peer.reports(here)
        copies = here.fleet.signals.copies
        assert copies.demand(prompt("x")[0]) == peer.fleet.signals.copies.demand(prompt("x")[0]) > 0
        assert here.fleet.signals.contexts.sharing(prompt("x")[0]) == 3

    def test_moves_with_a_retry(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A, request("x", tokens=50, to_compute=30))
        peer.reports(here)
        lease.move(Endpoint(B, B))
        peer.reports(here)
        assert (here.loads(), here.backlog(), here.contexts()) == ({B: 1}, {B: 30}, {B: 50})

    def test_continues_a_session_that_paused(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.release()
        peer.reports(here)
        assert here.paused(A) == 1
        peer.sends(A)
        peer.reports(here)
        assert here.paused(A) == 0

    def test_continues_a_session_that_paused_within_the_same_batch(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.release()
        peer.sends(A)
        peer.reports(here)
        assert here.paused(A) == peer.paused(A) == 0

    def test_began_when_its_sidecar_decided_it(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.clock.advance(0.5)
        peer.reports(here, age=0.25)
        (one,) = here.peers._peers["b"].leases.values()
        assert one.context is not None
        assert one.context.since == here.clock() - 0.75

    def test_counts_on_an_endpoint_that_left_until_it_ends(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        here.discovers([B])
        assert here.loads() == {A: 1}
        lease.release()
        peer.reports(here)
        assert here.loads() == {}


class TestOwnBatches:
    def test_are_ignored(self, pair: Pair) -> None:
        here, _ = pair
        here.sends(A)
        here.reports(here, held=True)
        assert here.loads() == {A: 1}
        assert len(here.peers) == 0


class TestDuplicate:
    def test_counts_once(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here, here)
        assert here.loads() == {A: 1}
        lease.finish_prefill()
        lease.release()
        peer.reports(here, here)
        assert here.loads() == {}

    def test_of_a_request_that_began_and_ended_within_it_leaves_nothing(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A).release()
        peer.reports(here, here)
        assert (here.loads(), here.backlog(), here.contexts()) == ({}, {}, {})


class TestLostBatch:
    """A batch that did not arrive. The next report of all requests in flight corrects its loss."""

    def test_of_a_begin_is_made_up_for(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", tokens=50, to_compute=30))
        peer.reports()
        peer.reports(here, held=True)
        assert (here.loads(), here.backlog(), here.contexts()) == ({A: 1}, {A: 30}, {A: 50})

    def test_of_a_request_that_has_begun_adds_no_backlog(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", tokens=50, to_compute=30)).finish_prefill()
        peer.reports()
        peer.reports(here, held=True)
        assert (here.loads(), here.backlog(), here.contexts()) == ({A: 1}, {}, {A: 50})

    def test_of_a_request_without_a_prediction_is_made_up_for(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, NOTHING_SENT)
        peer.reports()
        peer.reports(here, held=True)
        assert (here.loads(), here.contexts()) == ({A: 1}, {})

    def test_of_an_end_is_made_up_for(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.release()
        peer.reports()
        peer.reports(here, held=True)
        assert (here.loads(), here.backlog(), here.contexts()) == ({}, {}, {})

    def test_of_a_first_token_is_made_up_for(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.finish_prefill()
        peer.reports()
        assert here.backlog() == {A: 60}
        peer.reports(here, held=True)
        assert here.backlog() == {}

    def test_of_a_retry_is_made_up_for(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.move(Endpoint(B, B))
        peer.reports()
        peer.reports(here, held=True)
        assert (here.loads(), here.backlog(), here.contexts()) == ({B: 1}, {B: 60}, {B: 100})

    def test_of_a_request_is_no_reason_to_count_its_end(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports()
        lease.move(Endpoint(B, B))
        lease.finish_prefill()
        lease.release()
        peer.reports(here)
        assert here.loads() == {}


class TestSilentPeer:
    def test_counts_for_three_seconds(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.reports(here)
        here.clock.advance(SILENT_SECONDS)
        here.peers.expire()
        assert here.loads() == {A: 1}
        here.clock.advance(0.001)
        here.peers.expire()
        assert (here.loads(), here.backlog(), here.contexts()) == ({}, {}, {})
        assert len(here.peers) == 0

    def test_counts_from_when_it_wrote(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.reports(here, age=2)
        here.clock.advance(SILENT_SECONDS - 1.5)
        here.peers.expire()
        assert here.loads() == {}

    def test_stays_with_an_empty_report(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        for _ in range(5):
            peer.reports(here, held=True)
            here.clock.advance(1)
            here.peers.expire()
        assert here.loads() == {A: 1}

    def test_counts_again_with_what_it_holds(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.reports(here)
        here.clock.advance(10)
        here.peers.expire()
        peer.reports(here, held=True)
        assert here.loads() == {A: 1}

    def test_does_not_take_others_with_it(self) -> None:
        here, silent, other = group(3)
        silent.sends(A)
        other.sends(A)
        silent.reports(here)
        here.clock.advance(2)
        other.reports(here)
        here.clock.advance(2)
        here.peers.expire()
        assert here.loads() == {A: 1}


class TestPeerThatStops:
    def test_takes_its_counts_with_it(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A)
        peer.reports(here)
        peer.reports(here, is_last=True)
        assert here.loads() == {}
        assert len(here.peers) == 0

    def test_leaves_its_prompts_in_the_prefix_index(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", "y"))
        peer.reports(here)
        peer.reports(here, is_last=True)
        assert here.matches("x", "y") == {A: 2}

    def test_leaves_the_prompts_of_its_last_batch_too(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", "y"))
        peer.reports(here, is_last=True)
        assert here.matches("x", "y") == {A: 2}
        assert here.loads() == {}

    def test_and_starts_again_is_another_peer(self, pair: Pair) -> None:
        here, before = pair
        before.sends(A)
        before.reports(here)
        after = Sidecar("c", here.clock)
        after.sends(B)
        after.reports(here)
        assert here.loads() == {A: 1, B: 1}
        here.clock.advance(SILENT_SECONDS)
        after.reports(here, held=True)
        here.clock.advance(0.1)
        here.peers.expire()
        assert here.loads() == {B: 1}


class TestOldBatch:
    """A batch from the time before a sidecar started, which it reads then."""

    def test_only_fills_the_index(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(A, request("x", "y", adapter="sql"))
        peer.reports(here, held=True, age=SILENT_SECONDS + 0.1)
        assert here.loads() == {}
        assert here.matches("x", "y") == {A: 2}
        assert here.adapters(A) == ["sql"]
        assert len(here.peers) == 0

    def test_does_not_end_or_add_requests_of_a_live_peer(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.release()
        peer.sends(B)
        peer.reports(here, age=SILENT_SECONDS + 0.1)
        assert here.loads() == {A: 1}


class TestUnknownAddress:
    def test_is_never_counted(self, pair: Pair) -> None:
        here, peer = pair
        peer.discovers([A, UNKNOWN])
        peer.sends(UNKNOWN)
        peer.reports(here, held=True)
        assert (here.loads(), here.backlog(), here.contexts()) == ({}, {}, {})
        assert here.fleet.signals.prefixes.size(UNKNOWN) == 0
        assert here.adapters(UNKNOWN) == []

    def test_of_an_old_batch_is_not_in_the_index(self, pair: Pair) -> None:
        here, peer = pair
        peer.sends(UNKNOWN, request("x", adapter="sql"))
        peer.reports(here, age=10)
        assert here.matches("x") == {}
        assert here.fleet.signals.prefixes.size(UNKNOWN) == 0
        assert here.adapters(UNKNOWN) == []

    def test_is_not_the_target_of_a_retry(self, pair: Pair) -> None:
        here, peer = pair
        lease = peer.sends(A)
        peer.reports(here)
        lease.move(Endpoint(UNKNOWN, UNKNOWN))
        peer.reports(here)
        peer.reports(here, held=True)
        assert UNKNOWN not in here.loads()

    def test_is_not_ejected(self, pair: Pair) -> None:
        here, _ = pair
        here.peers.receive(
            Batch("b", ["", UNKNOWN], ejected=[(1, 30.0)], tried=[1], returned=[1]), 0
        )
        assert here.fleet.ejection.ejected == {}

    def test_adds_no_endpoint(self, pair: Pair) -> None:
        here, peer = pair
        before = dict(here.fleet.endpoints)
        peer.sends(UNKNOWN)
        peer.reports(here, held=True)
        assert here.fleet.endpoints == before
        assert {one.address for one in here.fleet.models[MODEL].endpoints} == before.keys()


class TestBadName:
    @pytest.mark.parametrize(
        "batch",
        [
            Batch("b", sent=[(1, 0, 9, 0, -1.0, 0.0, None, 0.0, [], None)]),
            Batch("b", ["", MODEL, A], sent=[(1, 9, 2, 0, -1.0, 0.0, None, 0.0, [], None)]),
            Batch("b", ["", MODEL, A], sent=[(1, 1, 2, 9, -1.0, 0.0, None, 0.0, [], None)]),
            Batch("b", moved=[(1, 9)]),
            Batch("b", held=[(1, 0, 9, -1.0, 0.0, 0.0)]),
            Batch("b", ejected=[(9, 1.0)]),
            Batch("b", tried=[9]),
            Batch("b", returned=[9]),
        ],
    )
    def test_is_an_index_error_that_changes_no_count(self, pair: Pair, batch: Batch) -> None:
        here, _ = pair
        with pytest.raises(IndexError):
            here.peers.receive(batch, 0)
        assert here.loads() == {}


class TestLimits:
    def test_on_peers_count_the_first_ones(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sharing, "MOST_PEERS", 5)
        here, _ = pair
        for number in range(20):
            peer = Sidecar(f"peer {number}", here.clock)
            peer.sends(A, request(f"{number}"))
            peer.reports(here, held=True)
        assert len(here.peers) == 5
        assert here.loads() == {A: 5}
        assert here.matches("19") == {A: 1}

    def test_on_peers_make_room_when_one_is_silent(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sharing, "MOST_PEERS", 1)
        here, silent = pair
        silent.reports(here, held=True)
        here.clock.advance(SILENT_SECONDS + 1)
        here.peers.expire()
        Sidecar("c", here.clock).reports(here, held=True)
        assert [one.id for one in here.peers.states()] == ["c"]

    @pytest.mark.parametrize("way", ["sent", "held"])
    def test_on_requests_of_one_peer(
        self, pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sharing, "MOST_REQUESTS", 7)
        here, peer = pair
        for _ in range(20):
            peer.sends(A)
        if way == "held":
            peer.reports()
        peer.reports(here, held=way == "held")
        assert here.loads() == {A: 7}


class TestTokenSizes:
    def test_of_a_peer_are_taken_over(self, pair: Pair) -> None:
        here, peer = pair
        peer.fleet.signals.token_sizes.record(MODEL, 300, 100)
        peer.reports(here, held=True)
        assert here.fleet.signals.token_sizes.of(MODEL) == peer.fleet.signals.token_sizes.of(MODEL)

    def test_learned_here_stay(self, pair: Pair) -> None:
        here, peer = pair
        here.fleet.signals.token_sizes.record(MODEL, 500, 100)
        before = here.fleet.signals.token_sizes.of(MODEL)
        peer.fleet.signals.token_sizes.record(MODEL, 100, 100)
        peer.reports(here, held=True)
        assert here.fleet.signals.token_sizes.of(MODEL) == before

    @pytest.mark.parametrize("size", [0.0, -1.0, 0.49, 32.1, float("nan"), float("inf")])
    def test_that_are_not_plausible_are_ignored(self, pair: Pair, size: float) -> None:
        here, _ = pair
        here.peers.receive(Batch("b", token_sizes={MODEL: size}), 0)
        assert here.fleet.signals.token_sizes.learned == {}

    def test_of_unknown_models_are_ignored(self, pair: Pair) -> None:
        here, _ = pair
        here.peers.receive(Batch("b", token_sizes={"other": 3.0}), 0)
        assert here.fleet.signals.token_sizes.learned == {}


class TestStates:
    def test_have_requests_and_ages_in_the_order_of_ids(self) -> None:
        here, *peers = group(3)
        for peer in reversed(peers):
            peer.sends(A)
            peer.reports(here, age=0.5)
        here.clock.advance(1)
        assert [tuple(one) for one in here.peers.states()] == [("b", 1, 1.5), ("c", 1, 1.5)]

    def test_have_no_negative_age(self, pair: Pair) -> None:
        here, peer = pair
        peer.reports(here, held=True, age=-0.5)
        assert here.peers.states()[0].age_seconds == 0


class TestIsFirst:
    def test_is_true_for_one_of_all(self) -> None:
        sidecars = group(3)
        for one in sidecars:
            one.reports(*(other for other in sidecars if other is not one), held=True)
        assert [one.peers.is_first() for one in sidecars] == [True, False, False]

    def test_passes_on_when_the_first_is_silent(self, pair: Pair) -> None:
        first, second = pair
        first.reports(second, held=True)
        assert not second.peers.is_first()
        second.clock.advance(SILENT_SECONDS + 1)
        second.peers.expire()
        assert second.peers.is_first()
