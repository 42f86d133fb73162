"""The journal of a sidecar's own requests."""

from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.sent_request import NOTHING_SENT, SentRequest
from extproc.core.sharing import journal as journals
from extproc.core.sharing.batch import SENT_AGO, Batch, packed
from tests.core.sharing.sidecars import MODEL, A, B, Sidecar, group, prompt, request


@pytest.fixture
def sidecar() -> Sidecar:
    return group(1)[0]


def names(batch: Batch, positions: list[int]) -> list[str]:
    return [batch.names[position] for position in positions]


class TestBatch:
    def test_is_empty_without_requests(self, sidecar: Sidecar) -> None:
        assert sidecar.journal.is_empty
        assert not any(sidecar.journal.take()._replace(origin="", names=()))

    def test_has_the_properties_of_a_sent_request(self, sidecar: Sidecar) -> None:
        asked = request("x", "y", tokens=40, to_compute=25, adapter="sql")
        sidecar.sends(B, asked._replace(turn=7))
        sidecar.clock.advance(0.015)
        (sent,) = (batch := sidecar.journal.take()).sent
        number, model, address, adapter, tokens, to_compute, prefix, seconds, chains, turn = sent
        assert number == 1
        assert names(batch, [model, address, adapter]) == [MODEL, B, "sql"]
        assert (tokens, to_compute, prefix) == (40, 25, prompt("x")[0])
        assert seconds == pytest.approx(0.015)
        assert (chains, turn) == ([packed(prompt("x", "y"))], 7)

    def test_has_every_prompt_of_a_request(self, sidecar: Sidecar) -> None:
        sidecar.sends(A, SentRequest(chains=(prompt("x"), prompt("y", "z"))))
        (sent,) = sidecar.journal.take().sent
        assert sent[8] == [packed(prompt("x")), packed(prompt("y", "z"))]

    def test_marks_a_request_without_a_prediction(self, sidecar: Sidecar) -> None:
        sidecar.sends(A, NOTHING_SENT)
        (sent,) = sidecar.journal.take().sent
        assert sent[3:7] == (0, -1.0, 0.0, None)
        assert sent[8:] == ([], None)

    def test_has_each_name_once(self, sidecar: Sidecar) -> None:
        for address in (A, A, B, A):
            sidecar.sends(address)
        assert sidecar.journal.take().names == ["", MODEL, A, B]

    def test_has_the_course_of_a_request(self, sidecar: Sidecar) -> None:
        first, second = sidecar.sends(A), sidecar.sends(A)
        first.move(Endpoint(B, B))
        first.finish_prefill()
        second.release()
        batch = sidecar.journal.take()
        assert [one[0] for one in batch.sent] == [1, 2]
        assert batch.moved == [(1, batch.names.index(B))]
        assert batch.began == [1]
        assert batch.ended == [2]

    def test_has_each_event_once(self, sidecar: Sidecar) -> None:
        lease = sidecar.sends()
        for _ in range(3):
            lease.finish_prefill()
            lease.release()
        batch = sidecar.journal.take()
        assert (batch.began, batch.ended) == ([1], [1])

    def test_reports_the_begin_of_a_request_that_was_computed_before_a_later_one(
        self, sidecar: Sidecar
    ) -> None:
        first, second = sidecar.sends(), sidecar.sends()
        second.finish_prefill()
        first.finish_prefill()
        assert sidecar.journal.take().began == [2, 1]

    def test_has_only_what_happened_since_the_one_before(self, sidecar: Sidecar) -> None:
        lease = sidecar.sends()
        sidecar.journal.take()
        assert sidecar.journal.is_empty
        lease.release()
        assert not sidecar.journal.is_empty
        batch = sidecar.journal.take()
        assert (batch.sent, batch.ended) == ([], [1])

    def test_numbers_requests_in_order(self, sidecar: Sidecar) -> None:
        numbers = [sidecar.sends().number for _ in range(2)]
        sidecar.journal.take()
        assert [*numbers, sidecar.sends().number] == [1, 2, 3]

    def test_does_not_repeat_the_requests_of_peers(self, sidecar: Sidecar) -> None:
        peer = Sidecar("peer", sidecar.clock)
        lease = peer.sends()
        peer.reports(sidecar)
        lease.finish_prefill()
        lease.release()
        peer.reports(sidecar)
        assert sidecar.journal.is_empty
        assert sidecar.journal.take(held=True).held == []

    def test_says_if_it_is_the_last(self, sidecar: Sidecar) -> None:
        assert sidecar.journal.take(is_last=True).is_last


class TestHeld:
    def test_are_missing_between_the_intervals(self, sidecar: Sidecar) -> None:
        sidecar.sends()
        assert sidecar.journal.take().held is None

    def test_are_all_requests_in_flight(self, sidecar: Sidecar) -> None:
        ended, held = sidecar.sends(), sidecar.sends(B, request("x", tokens=9, to_compute=4))
        sidecar.journal.take()
        ended.release()
        sidecar.clock.advance(2.5)
        batch = sidecar.journal.take(held=True)
        assert batch.held == [
            (held.number, batch.names.index(MODEL), batch.names.index(B), 9, 4, 2.5)
        ]

    def test_have_nothing_to_compute_after_the_response_began(self, sidecar: Sidecar) -> None:
        sidecar.sends().finish_prefill()
        ((*_, to_compute, _),) = sidecar.journal.take(held=True).held or ()
        assert to_compute == 0

    def test_have_nothing_to_compute_if_a_later_request_began(self, sidecar: Sidecar) -> None:
        sidecar.sends()
        sidecar.sends().finish_prefill()
        held = sidecar.journal.take(held=True).held or ()
        assert [to_compute for *_, to_compute, _ in held] == [0, 0]

    def test_are_at_the_endpoint_that_serves_them_after_a_retry(self, sidecar: Sidecar) -> None:
        sidecar.sends(A).move(Endpoint(B, B))
        batch = sidecar.journal.take(held=True)
        assert batch.held is not None
        assert names(batch, [one[2] for one in batch.held]) == [B]

    def test_exclude_requests_from_before_the_journal(self) -> None:
        (early,) = group(1)
        early.fleet.ledger.journal = None
        early.sends()
        early.fleet.ledger.journal = early.journal
        assert early.journal.take(held=True).held == []

    def test_come_with_the_learned_token_sizes(self, sidecar: Sidecar) -> None:
        sidecar.fleet.signals.token_sizes.record(MODEL, 300, 100)
        assert sidecar.journal.take().token_sizes == {}
        assert sidecar.journal.take(held=True).token_sizes.keys() == {MODEL}


class TestWake:
    def test_comes_with_the_first_event_after_a_report(self, sidecar: Sidecar) -> None:
        sidecar.sends()
        sidecar.sends()
        assert sidecar.wakes == 1
        sidecar.journal.take()
        assert sidecar.wakes == 1
        sidecar.sends()
        assert sidecar.wakes == 2

    def test_comes_with_the_end_of_a_request(self, sidecar: Sidecar) -> None:
        lease = sidecar.sends()
        sidecar.journal.take()
        lease.finish_prefill()
        lease.release()
        assert sidecar.wakes == 2


class TestEjections:
    def test_are_reported_with_their_seconds(self, sidecar: Sidecar) -> None:
        for _ in range(3):
            sidecar.fleet.ejection.record(A, Outcome.RESET)
        batch = sidecar.journal.take()
        assert batch.ejected == [(batch.names.index(A), 5.0)]

    def test_are_reported_with_the_seconds_that_are_left(self, sidecar: Sidecar) -> None:
        for _ in range(3):
            sidecar.fleet.ejection.record(A, Outcome.RESET)
        sidecar.clock.advance(2)
        assert [seconds for _, seconds in sidecar.journal.take().ejected] == [3.0]

    def test_are_followed_by_trials_and_returns(self, sidecar: Sidecar) -> None:
        ejection = sidecar.fleet.ejection
        for _ in range(3):
            ejection.record(A, Outcome.RESET)
        sidecar.journal.take()
        sidecar.clock.advance(6)
        sent = ejection.chosen(A)
        assert not sidecar.journal.is_empty
        batch = sidecar.journal.take()
        assert (batch.ejected, names(batch, [*batch.tried]), batch.returned) == ([], [A], [])
        ejection.record(A, Outcome.SERVED, sent)
        assert not sidecar.journal.is_empty
        batch = sidecar.journal.take()
        assert (batch.ejected, batch.tried, names(batch, [*batch.returned])) == ([], [], [A])

    def test_are_only_the_last_event_of_an_endpoint(self, sidecar: Sidecar) -> None:
        ejection = sidecar.fleet.ejection
        for outcome in (Outcome.SERVED, Outcome.RESET):
            for _ in range(3):
                ejection.record(A, Outcome.RESET)
            sidecar.clock.advance(6)
            ejection.record(A, outcome, ejection.chosen(A))
        batch = sidecar.journal.take()
        assert (batch.ejected, batch.tried, batch.returned) == ([(1, 10.0)], [], [])

    def test_of_peers_are_not_repeated(self, sidecar: Sidecar) -> None:
        peer = Sidecar("peer", sidecar.clock)
        for _ in range(3):
            peer.fleet.ejection.record(A, Outcome.RESET)
        peer.reports(sidecar)
        assert sidecar.fleet.ejection.ejected.keys() == {A}
        assert sidecar.journal.is_empty


class TestBatchThatIsPutBack:
    """A batch that the shared state did not take."""

    def test_is_part_of_the_next_one(self, sidecar: Sidecar) -> None:
        first = sidecar.sends(A, request("x"))
        first.move(Endpoint(B, B))
        first.finish_prefill()
        sidecar.journal.take()
        sidecar.journal.put_back()
        assert not sidecar.journal.is_empty
        second = sidecar.sends(A)
        second.release()
        batch = sidecar.journal.take()
        assert [one[0] for one in batch.sent] == [first.number, second.number]
        assert batch.moved == [(first.number, batch.names.index(B))]
        assert (batch.began, batch.ended) == ([first.number], [second.number])

    def test_keeps_the_order_of_events(self, sidecar: Sidecar) -> None:
        lease, ejection = sidecar.sends(), sidecar.fleet.ejection
        for _ in range(3):
            ejection.record(A, Outcome.RESET)
        sidecar.journal.take()
        sidecar.clock.advance(5)
        lease.move(Endpoint(B, B))
        ejection.record(A, Outcome.SERVED, ejection.chosen(A))
        sidecar.journal.put_back()
        batch = sidecar.journal.take()
        assert (batch.ejected, names(batch, [*batch.returned])) == ([], [A])
        assert len(batch.sent) == len(batch.moved) == 1

    def test_has_the_times_of_the_next_one(self, sidecar: Sidecar) -> None:
        sidecar.sends()
        for _ in range(3):
            sidecar.fleet.ejection.record(A, Outcome.RESET)
        sidecar.journal.take()
        sidecar.clock.advance(2)
        sidecar.journal.put_back()
        batch = sidecar.journal.take()
        assert [sent[SENT_AGO] for sent in batch.sent] == [2.0]
        assert [seconds for _, seconds in batch.ejected] == [3.0]

    def test_comes_only_once(self, sidecar: Sidecar) -> None:
        sidecar.sends()
        sidecar.journal.take()
        sidecar.journal.put_back()
        sidecar.journal.put_back()
        assert len(sidecar.journal.take().sent) == 1
        assert sidecar.journal.is_empty

    def test_without_events_leaves_nothing_to_report(self, sidecar: Sidecar) -> None:
        sidecar.journal.take(held=True)
        sidecar.journal.put_back()
        assert sidecar.journal.is_empty

    def test_does_not_change_the_one_that_was_taken(self, sidecar: Sidecar) -> None:
        sidecar.sends().finish_prefill()
        before = sidecar.journal.take()
        sidecar.journal.put_back()
        sidecar.sends().finish_prefill()
        assert (len(before.sent), before.began) == (1, [1])


class TestLimits:
    """The journal of a sidecar whose server is away."""

    def test_on_blocks_drop_the_oldest_requests(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_BLOCKS", 100)
        for number in range(200):
            sidecar.sends(A, request(f"{number}", "b", "c"))
        sent = sidecar.journal.take().sent
        assert 100 / 2 - 3 <= sum(len(chain) // 8 for one in sent for chain in one[8]) <= 100
        assert [one[0] for one in sent] == list(range(201 - len(sent), 201))

    def test_on_blocks_drop_a_longer_prompt(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_BLOCKS", 2)
        sidecar.sends(A, request("a", "b", "c"))
        assert sidecar.journal.take().sent == []
        sidecar.sends(A, request("a", "b"))
        assert len(sidecar.journal.take().sent) == 1

    def test_on_requests_keep_the_latest_events(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_REQUESTS", 10)
        for _ in range(101):
            lease = sidecar.sends()
            lease.move(Endpoint(B, B))
            lease.finish_prefill()
            lease.release()
        batch = sidecar.journal.take()
        for events in (batch.sent, batch.moved, batch.began, batch.ended):
            assert 5 <= len(events) <= 10
        assert [batch.sent[-1][0], batch.moved[-1][0], batch.began[-1], batch.ended[-1]] == [
            101
        ] * 4

    def test_on_requests_bound_ejections_too(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_REQUESTS", 10)
        for _ in range(50):
            sidecar.journal.ejected((), A, Outcome.RESET, 5.0)
            sidecar.journal.tried((), A)
            sidecar.journal.returned((), A)
        batch = sidecar.journal.take()
        assert max(map(len, (batch.ejected, batch.tried, batch.returned))) <= 10

    def test_are_those_of_one_report(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_BLOCKS", 4)
        for _ in range(5):
            sidecar.sends(A, request("a", "b", "c"))
            assert len(sidecar.journal.take().sent) == 1

    def test_hold_with_a_batch_that_is_put_back(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_BLOCKS", 30)
        monkeypatch.setattr(journals, "MOST_REQUESTS", 20)
        for words in ("abc", "d"):
            for _ in range(10):
                lease = sidecar.sends(A, request(*words))
                lease.finish_prefill()
                lease.release()
                sidecar.journal.began(lease.number)
            if words == "abc":
                sidecar.journal.take()
        sidecar.journal.put_back()
        batch = sidecar.journal.take()
        assert 5 <= sum(len(chain) // 8 for one in batch.sent for chain in one[8]) <= 30
        assert 10 <= len(batch.began) <= 20
        assert (batch.sent[-1][0], batch.began[-1], batch.ended[-1]) == (20, 20, 20)

    def test_keep_all_requests_in_flight(
        self, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(journals, "MOST_REQUESTS", 10)
        for _ in range(50):
            sidecar.sends()
        assert len(sidecar.journal.take(held=True).held or ()) == 50
