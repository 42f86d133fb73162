from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from random import Random

import pytest

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.engine_times import Slowness
from extproc.core.fleet.report import Load, Report
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query, Reason
from tests.core.strategies.prefix_cache_replicas import (
    Replicas,
    key,
    prompt,
    query,
    set_slowness,
)


class TestOtherSidecars:
    """Only the engines' metrics show the requests of other sidecars."""

    HISTORY = prompt("session")
    FIRST_TURN = Query(key=key("session"), prompt=prompt("next", 1000, after=HISTORY))
    NEXT_TURN = FIRST_TURN._replace(
        prompt=prompt("next", 1000, after=HISTORY)._replace(previous_blocks=len(HISTORY.blocks))
    )

    def replicas(self, share: float, count: int = 8) -> Replicas:
        """Return engines with a few requests each, some of them from other sidecars."""
        replicas = Replicas(count)
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, round(4 * (1 - share)))
            replicas.scrape(endpoint, running=4)
        return replicas

    def run(self, replicas: Replicas, endpoint: Endpoint, requests: int) -> None:
        """Let an engine run so many requests for so long that this is their mean."""
        replicas.signals.pressure.forget(endpoint.address)
        replicas.scrape(endpoint, running=requests)

    def test_have_probably_sent_a_prompt_to_its_home_endpoint(self) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("prompt"))
        self.run(replicas, home, 7)  # nearly twice the load of the others
        candidate = replicas.first(query("prompt"))
        assert (candidate.endpoint, candidate.reason) == (home, Reason.COLD)
        assert candidate.prediction == (4000, 0)  # only known cache hits are predicted

    def test_are_not_followed_to_an_overloaded_home_endpoint(self) -> None:
        replicas = self.replicas(0.75)
        home, second, *_ = replicas.ring_from(key("prompt"))
        self.run(replicas, home, 100)
        assert replicas.first(query("prompt")).endpoint == second

    def test_are_not_followed_to_a_stale_home_endpoint(self) -> None:
        replicas = self.replicas(0.75)
        home, *others = replicas.ring_from(key("prompt"))
        replicas.clock.advance(10)
        for endpoint in others:
            replicas.scrape(endpoint, running=4)
        replicas.load(home, 4)  # five with the one before; the others have four too
        assert replicas.first(query("prompt")).endpoint != home

    def test_count_less_than_known_cache_hits(self) -> None:
        replicas = self.replicas(0.75)
        *_, last = replicas.ring_from(key("prompt"))
        replicas.signals.prefixes.sent(last.address, prompt("prompt").blocks)
        candidate = replicas.first(query("prompt"))
        assert (candidate.endpoint, candidate.reason) == (last, Reason.CACHED)

    def test_have_sent_an_unknown_previous_turn_to_its_home_endpoint(self) -> None:
        replicas = self.replicas(0.25)
        home, *_ = replicas.ring_from(key("session"))
        self.run(replicas, home, 12)  # more load than a quarter of the prompt is worth
        assert replicas.first(self.FIRST_TURN).endpoint != home
        assert replicas.first(self.NEXT_TURN).endpoint == home

    @pytest.mark.parametrize("missing", [0, 1])
    def test_have_not_sent_a_previous_turn_that_is_known(self, missing: int) -> None:
        replicas = self.replicas(0.25)
        *_, last = replicas.ring_from(key("session"))
        known = len(self.HISTORY.blocks) - missing
        replicas.signals.prefixes.sent(last.address, self.HISTORY.blocks[:known])
        if not missing:
            self.run(replicas, last, 5)
        assert replicas.first(self.NEXT_TURN).endpoint == last

    @pytest.mark.parametrize("share", [0.75, 0.0])
    def test_have_probably_sent_it_to_a_fast_endpoint_of_a_mixed_fleet(
        self, share: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = self.replicas(share)
        *slow, fast = replicas.ring_from(key("prompt"))
        slowness = {one.address: 4.0 for one in slow} | {fast.address: 1.0}
        found = Slowness(slowness, {})
        set_slowness(monkeypatch, replicas, found)
        replicas.load(fast, round(60 * (1 - share)))
        self.run(replicas, fast, 60)
        chosen = replicas.first(query("prompt")).endpoint
        assert (chosen == fast) == (share > 0)

    def test_are_not_expected_to_have_sent_new_prompts_if_all_prompts_are_new(self) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("prompt"))
        self.run(replicas, home, 7)
        self.send_new_prompts(replicas)
        assert replicas.first(query("prompt")).endpoint != home

    @pytest.mark.parametrize("repeats", ["previous turn", "known prompt"])
    def test_are_expected_to_have_sent_them_if_prompts_repeat(self, repeats: str) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("prompt"))
        self.run(replicas, home, 7)
        if repeats == "known prompt":
            for address in replicas.addresses:
                replicas.signals.prefixes.sent(address, prompt("new", 640).blocks)
            self.send_new_prompts(replicas, after=prompt("new", 640))
        else:
            self.send_new_prompts(replicas, previous_blocks=3)
        assert replicas.first(query("prompt")).endpoint == home

    def send_new_prompts(
        self, replicas: Replicas, previous_blocks: int = 0, after: Prompt | None = None
    ) -> None:
        for number in range(300):
            name = f"new {number}"
            new = prompt(name, 320, after=after)._replace(previous_blocks=previous_blocks)
            replicas.serve(Query(key=key(name), prompt=new))

    @pytest.mark.parametrize(("share", "are_equal"), [(0.75, True), (0.25, False), (0.0, False)])
    def test_make_endpoints_equal_where_prompts_wait_a_little_longer(
        self, share: float, are_equal: bool
    ) -> None:
        replicas = self.replicas(share)
        home, *others = replicas.ring_from(key("short"))
        replicas.load(home, 1, 7000)
        for endpoint in others:
            replicas.load(endpoint, 1, 5000)
        assert (replicas.first(query("short", 64)).endpoint == home) is are_equal

    def test_do_not_if_all_prompts_are_new(self) -> None:
        replicas = self.replicas(0.75)
        self.send_new_prompts(replicas)
        home, *others = replicas.ring_from(key("short"))
        replicas.load(home, 1, 7000)
        for endpoint in others:
            replicas.load(endpoint, 1, 5000)
        assert replicas.first(query("short", 64)).endpoint != home

    def test_leave_the_usual_tolerance_if_no_prompt_waits(self) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("short"))
        for endpoint in replicas.snapshot.endpoints:
            self.run(replicas, endpoint, 104 if endpoint == home else 100)
        assert replicas.first(query("short", 64)).endpoint == home

    def test_do_not_make_endpoints_with_more_responses_equal_if_no_prompt_waits(self) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("short"))
        self.run(replicas, home, 5)
        assert replicas.first(query("short", 64)).endpoint != home

    def test_are_ignored_if_all_requests_are_from_this_sidecar(self) -> None:
        replicas = self.replicas(0.0)
        home, *_ = replicas.ring_from(key("prompt"))
        replicas.load(home, 3)
        assert replicas.first(query("prompt")).endpoint != home


class TestReportedLoad:
    def replicas(self) -> Replicas:
        replicas = Replicas()
        for endpoint in replicas.snapshot.endpoints:
            replicas.scrape(endpoint)
        return replicas

    def test_endpoint_with_waiting_requests_is_avoided(self) -> None:
        replicas = self.replicas()
        home = replicas.serve(query("prompt", 400)).endpoint
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 40)
            replicas.scrape(endpoint, running=40)
        assert replicas.first(query("prompt", 400)).endpoint == home
        replicas.scrape(home, running=20, waiting=20)
        assert replicas.first(query("prompt", 400)).endpoint != home

    def test_endpoint_with_a_full_kv_cache_is_avoided(self) -> None:
        replicas = self.replicas()
        home = replicas.serve(query("prompt", 400)).endpoint
        replicas.scrape(home, kv_usage=0.6)
        assert replicas.first(query("prompt", 400)).endpoint == home
        replicas.scrape(home, kv_usage=1.0)
        assert replicas.first(query("prompt", 400)).endpoint != home

    def test_becomes_stale(self) -> None:
        replicas = self.replicas()
        home = replicas.serve(query("prompt", 400)).endpoint
        replicas.scrape(home, kv_usage=1.0)
        replicas.clock.advance(10)
        assert replicas.first(query("prompt", 400)).endpoint == home


class TestDifferentPrompts:
    @pytest.mark.parametrize("tokens", [50, 1000, 20_000])
    def test_are_spread_evenly(self, tokens: int) -> None:
        replicas = Replicas(8)
        asked = (query(f"{number}", tokens) for number in range(400))
        went = Counter(replicas.send(one).endpoint.address for one in asked)
        assert len(went) == 8
        assert max(went.values()) <= 1.5 * min(went.values())

    def test_are_spread_by_their_length(self) -> None:
        replicas = Replicas(4)
        random = Random(0)
        for number in range(300):
            replicas.send(query(f"{number}", random.choice([100, 1000, 10_000])))
        to_do = replicas.signals.backlog.tokens
        assert max(to_do.values()) < 1.5 * min(to_do.values())

    def test_avoid_an_endpoint_that_computes_nothing(self) -> None:
        # A request to an engine that hangs gets no response. The others respond at once.
        replicas = Replicas(4)
        hangs = replicas.addresses[0]
        went: Counter[str] = Counter()
        for number in range(400):
            address = replicas.send(query(f"{number}", 2000)).endpoint.address
            went[address] += 1
            if address != hangs:
                replicas.leases.pop().release()
        assert went[hangs] < 0.05 * 400


def test_all_endpoints_are_candidates_although_none_has_a_cost() -> None:
    replicas = Replicas(3)
    for endpoint in replicas.snapshot.endpoints:
        replicas.load(endpoint, 1, backlog=inf)
    assert {one.endpoint for one in replicas.order(query("prompt"))} == {
        *replicas.snapshot.endpoints
    }


class TestRemovedEndpoint:
    def test_removed_or_restarted_endpoint_has_no_cached_blocks(self) -> None:
        for leaves in (True, False):
            replicas = Replicas()
            home = replicas.serve(query("prompt")).endpoint
            if leaves:
                replicas.signals.set_endpoints([a for a in replicas.addresses if a != home.address])
                replicas.signals.set_endpoints(replicas.addresses)
            else:
                for tokens in (4000, 100):
                    report = Report(Load(0, 0), 0, prompt_tokens=tokens)
                    replicas.signals.record_scrape(home.address, report, 0)
            assert {candidate.reason for candidate in replicas.order(query("prompt"))} == {
                Reason.COLD
            }

    def test_prompts_move_to_the_next_endpoint_on_the_ring(self) -> None:
        replicas = Replicas(8)
        first, second, *_ = replicas.ring_from(key("prompt"))
        assert replicas.serve(query("prompt")).endpoint == first
        replicas.signals.set_endpoints([a for a in replicas.addresses if a != first.address])
        replicas.snapshot = Snapshot.of([e for e in replicas.snapshot.endpoints if e != first])
        candidate = replicas.serve(query("prompt"))
        assert (candidate.endpoint, candidate.reason) == (second, Reason.COLD)


class TestFullCache:
    def test_evicts_the_least_recently_used_blocks(self) -> None:
        replicas = Replicas(1)
        room = Report(Load(0, 0), 0, block_size=16, blocks=10_000 // 16)
        replicas.signals.record_scrape(replicas.addresses[0], room, 0)
        for name in ("first", "second", "third"):
            replicas.serve(query(name, 4000))
        hits = {}
        for name in ("first", "second", "third"):
            prediction = replicas.first(query(name, 4000)).prediction
            assert prediction is not None
            hits[name] = prediction.hit
        assert hits["third"] > 0.95
        assert hits["second"] > 0.95
        assert 0.2 < hits["first"] < 0.6


class TestStaleEndpoint:
    """It was scraped once, but its metrics are stale now. Those of the others are not."""

    @pytest.fixture
    def replicas(self) -> Replicas:
        replicas = Replicas(3)
        self.speak(replicas, replicas.snapshot.endpoints)
        return replicas

    def speak(self, replicas: Replicas, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            replicas.signals.record_scrape(endpoint.address, Report(Load(0, 0), 0), 0)

    def test_counts_as_having_no_cached_blocks(self, replicas: Replicas) -> None:
        home = replicas.serve(query("prompt")).endpoint
        replicas.clock.advance(10)
        self.speak(replicas, replicas.others(home))
        assert {c.reason for c in replicas.order(query("prompt"))} == {Reason.COLD}

    def test_counts_as_having_no_response(self, replicas: Replicas) -> None:
        home = replicas.serve(Query(key=1, prompt=Prompt((), 160, turn=7))).endpoint
        asked = Query(key=1, prompt=Prompt((), 1760, previous_turn=7, answered_bytes=1600))
        assert replicas.first(asked).endpoint == home
        replicas.clock.advance(10)
        self.speak(replicas, replicas.others(home))
        assert {c.reason for c in replicas.order(asked)} == {Reason.COLD}

    def test_counts_again_after_its_next_report(self, replicas: Replicas) -> None:
        home = replicas.serve(query("prompt")).endpoint
        replicas.clock.advance(10)
        self.speak(replicas, replicas.snapshot.endpoints)
        again = replicas.first(query("prompt"))
        assert (again.endpoint, again.reason) == (home, Reason.CACHED)

    def test_counts_if_no_endpoint_reports(self, replicas: Replicas) -> None:
        # Then the sidecar cannot scrape, and the endpoint does not hang.
        home = replicas.serve(query("prompt")).endpoint
        replicas.clock.advance(1000)
        assert replicas.first(query("prompt")).endpoint == home


class TestRequestsThatAreNotKnownYet:
    """Sidecars that share their state know each other's requests some milliseconds late."""

    def chosen(self, missed: int) -> Counter[Endpoint]:
        """Return where new prompts go if one of eight endpoints is the least busy.

        Each of the decisions before did not know so many requests on its endpoint.
        """
        replicas = Replicas(8)
        idlest, *others = replicas.snapshot.endpoints
        for endpoint in others:
            replicas.load(endpoint, 4)
        replicas.load(idlest, 3)
        unseen = replicas.signals.unseen
        for decision in range(200):
            unseen.decided(idlest.address, float(decision))
            for _ in range(missed):
                unseen.arrived(idlest.address, decision - 0.01)
        return Counter(replicas.first(query(f"prompt {number}")).endpoint for number in range(80))

    def test_let_new_prompts_go_to_all_endpoints_that_may_be_the_least_busy(self) -> None:
        assert len(self.chosen(missed=0)) == 1
        assert len(self.chosen(missed=2)) == 8

    def test_do_not_move_a_prompt_from_the_endpoint_that_has_it(self) -> None:
        replicas = Replicas(8)
        _, _, home, *_ = replicas.ring_from(key("prompt"))
        replicas.signals.prefixes.sent(home.address, prompt("prompt").blocks)
        replicas.signals.backlog.mean = 4_000
        unseen = replicas.signals.unseen
        for decision in range(200):
            unseen.decided(home.address, float(decision))
            unseen.arrived(home.address, decision - 0.01)
        assert replicas.first(query("prompt")).endpoint == home
