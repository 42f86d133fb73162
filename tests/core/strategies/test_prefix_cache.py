"""Examples of PrefixCache with clear outcomes, so that the weights can be tuned."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query, Reason
from tests.core.builders import brief
from tests.core.clock import report
from tests.core.strategies.prefix_cache_replicas import (
    Replicas,
    key,
    prompt,
    query,
    rules,
)


class TestRepeatedPrompt:
    def test_goes_to_the_same_endpoint(self) -> None:
        replicas = Replicas()
        names = [f"prompt {number}" for number in range(20)]
        homes = {name: replicas.serve(query(name)).endpoint for name in names}
        assert len(set(homes.values())) == 4
        for name in reversed(names):
            again = replicas.serve(query(name))
            assert (again.endpoint, again.reason) == (homes[name], Reason.CACHED)

    def test_is_found_by_its_blocks_not_by_its_key(self) -> None:
        replicas = Replicas(8)
        home = replicas.serve(query("prompt")).endpoint
        for number in range(20):
            asked = query("prompt")._replace(key=key(f"{number}"))
            assert replicas.serve(asked).endpoint == home

    def test_goes_to_the_same_endpoint_although_it_is_slightly_busier(self) -> None:
        replicas = Replicas()
        home = replicas.serve(query("prompt")).endpoint
        for endpoint in replicas.others(home):
            replicas.load(endpoint, 2)
        replicas.load(home, 3, backlog=500)
        assert replicas.first(query("prompt")).endpoint == home

    def test_next_turn_goes_to_the_same_endpoint(self) -> None:
        replicas = Replicas()
        conversation = prompt("turn 0")
        home = replicas.serve(Query(key=1, prompt=conversation))
        for turn in range(1, 10):
            conversation = prompt(f"turn {turn}", 300, after=conversation)
            candidate = replicas.serve(Query(key=1, prompt=conversation))
            assert (candidate.endpoint, candidate.reason) == (home.endpoint, Reason.CACHED)

    def test_is_predicted_to_be_cached(self) -> None:
        replicas = Replicas()
        first = replicas.serve(query("prompt", 6400)).prediction
        assert first == (6400, 0)
        again = replicas.serve(query("prompt", 6400)).prediction
        assert again == (6400, 6400)
        longer = Query(key=1, prompt=prompt("more", 1600, after=prompt("prompt", 6400)))
        assert replicas.first(longer).prediction == (8000, 6400)

    def test_prediction_uses_the_models_bytes_per_token(self) -> None:
        replicas = Replicas()
        asked = query("prompt", 6400)._replace(bytes_per_token=2.0)
        replicas.serve(asked)
        assert replicas.first(asked).prediction == (12800, 12800)

    def test_other_endpoints_follow_in_the_order(self) -> None:
        replicas = Replicas()
        home = replicas.serve(query("prompt")).endpoint
        replicas.load(replicas.ring_from(7)[0], 1)
        best, *others = replicas.order(query("prompt"))
        assert (best.endpoint, best.reason, best.hops) == (home, Reason.CACHED, 0)
        assert {other.reason for other in others} == {Reason.SPARED}
        assert {other.prediction for other in others} == {(4000, 0)}


class TestShortTurns:
    """Sessions behind one system prompt, with messages that are shorter than a block."""

    RULES = rules("rules", 1024)
    QUESTION, RESPONSE = 40, 600  # tokens

    def ask(self, session: int) -> Query:
        """Return the first turn of a session."""
        size = self.RULES.bytes + 4 * self.QUESTION
        return Query(key=key("rules"), prompt=self.RULES._replace(bytes=size, turn=session))

    def ask_again(self, session: int) -> Query:
        """Return its second turn."""
        answered = self.RULES.bytes + 4 * (self.QUESTION + self.RESPONSE)
        own = prompt(f"{session}", self.QUESTION + self.RESPONSE, after=self.RULES)
        again = own._replace(
            bytes=answered + 4 * self.QUESTION,
            previous_turn=session,
            answered_bytes=answered,
            turn=100 + session,
        )
        return Query(key=key("rules"), prompt=again)

    def test_go_where_their_session_has_its_response(self) -> None:
        replicas = Replicas()
        homes = [replicas.send(self.ask(session)).endpoint for session in range(12)]
        assert set(homes) == set(replicas.snapshot.endpoints)
        for lease in replicas.leases:
            lease.release()
        for session, home in enumerate(homes):
            asked = self.ask_again(session)
            assert replicas.strategy.homes(asked, replicas.snapshot) == (home.address,)
            best, *others = replicas.order(asked)
            assert (best.endpoint, best.reason) == (home, Reason.CACHED)
            assert best.prediction == (1024 + 2 * self.QUESTION + self.RESPONSE, 1024 + 640)
            assert {(one.reason, one.prediction) for one in others} == {
                (Reason.SPARED, (1704, 1024))
            }

    def test_go_elsewhere_after_a_restart(self) -> None:
        replicas = Replicas()
        home = replicas.serve(self.ask(1)).endpoint
        replicas.signals.set_endpoints([one.address for one in replicas.others(home)])
        replicas.signals.set_endpoints(replicas.addresses)
        found = {one.endpoint: one.prediction for one in replicas.order(self.ask_again(1))}
        assert found[home] == (1704, 0)


class TestBusyEndpoint:
    @pytest.mark.parametrize(
        ("requests", "backlog"),
        [
            pytest.param(1, 300_000, id="to compute"),
            pytest.param(400, 0, id="in flight"),
            pytest.param(50, 100_000, id="of both"),
        ],
    )
    def test_is_spared_although_it_has_the_prompt(self, requests: int, backlog: float) -> None:
        replicas = Replicas(8)
        home = replicas.serve(query("prompt", 2000)).endpoint
        replicas.load(home, requests, backlog)
        for endpoint in replicas.others(home):
            replicas.load(endpoint, 1)
        candidate = replicas.send(query("prompt", 2000))
        assert candidate.endpoint != home
        assert candidate.reason is Reason.SPARED
        assert candidate.prediction == (2000, 0)

    def test_prompt_spreads_to_other_endpoints(self) -> None:
        replicas = Replicas()
        home = replicas.serve(query("prompt")).endpoint
        replicas.load(home, 1, 300_000)
        helper = replicas.serve(query("prompt")).endpoint
        again = replicas.serve(query("prompt"))
        assert (again.endpoint, again.reason) == (helper, Reason.CACHED)

    def test_is_chosen_again_after_its_requests_end(self) -> None:
        replicas = Replicas()
        home = replicas.serve(query("prompt")).endpoint
        replicas.load(home, 1, 300_000)
        assert replicas.first(query("prompt")).endpoint != home
        replicas.leases.pop().finish_prefill()
        assert replicas.first(query("prompt")).endpoint == home

    def test_load_from_other_sidecars_counts_too(self) -> None:
        replicas = Replicas(8)
        home = replicas.serve(query("prompt", 2000)).endpoint
        for address in replicas.addresses:
            replicas.signals.record_scrape(address, report(running=2), inflight=0)
        replicas.signals.record_scrape(home.address, report(waiting=300, running=100), inflight=0)
        assert replicas.first(query("prompt", 2000)).endpoint != home
        replicas.clock.advance(3600)
        assert replicas.first(query("prompt", 2000)).endpoint == home

    def test_longer_cache_hit_justifies_a_longer_queue(self) -> None:
        def stays(tokens: int, backlog: float) -> bool:
            replicas = Replicas()
            home = replicas.serve(query("prompt", tokens)).endpoint
            replicas.load(home, 1, backlog)
            return replicas.first(query("prompt", tokens)).endpoint == home

        assert not stays(64, 30_000)
        assert stays(50_000, 30_000)

    def test_keeps_its_prefixes_if_one_endpoint_alone_is_idle(self) -> None:
        # Such as an endpoint that has just joined a busy fleet.
        replicas = Replicas(8)
        home = replicas.serve(query("session", 1_500)).endpoint
        idle, *others = replicas.others(home)
        for endpoint in (home, *others):
            replicas.load(endpoint, 4)
        assert replicas.first(query("session", 1_500)).endpoint == home
        assert replicas.first(query("new", 1_500)).endpoint == idle


class TestColdPrompt:
    def test_goes_to_the_first_on_the_ring_if_all_are_equal(self) -> None:
        replicas = Replicas(8)
        for number in range(50):
            name = f"prompt {number}"
            first = replicas.serve(query(name))
            assert (first.endpoint, first.reason) == (
                replicas.ring_from(key(name))[0],
                Reason.COLD,
            )

    def test_goes_to_the_next_on_the_ring_if_the_first_is_much_busier(self) -> None:
        replicas = Replicas(8)
        first, second, *_ = replicas.ring_from(key("prompt"))
        replicas.load(first, 20, 50_000)
        assert replicas.first(query("prompt")).endpoint == second

    def test_reason_is_cold_for_every_endpoint(self) -> None:
        replicas = Replicas()
        assert {candidate.reason for candidate in replicas.order(query("prompt"))} == {Reason.COLD}

    def test_short_prompt_stays_cold(self) -> None:
        replicas = Replicas()
        for _ in range(2):
            candidate = replicas.serve(query("hi", 5))
            assert candidate.endpoint == replicas.ring_from(key("hi"))[0]
            assert (candidate.reason, candidate.prediction) == (Reason.COLD, (5, 0))

    @brief
    @given(st.lists(st.integers(0, 30), min_size=5, max_size=5), st.text())
    def test_sidecars_with_the_same_information_choose_the_same_endpoint(
        self, loads: list[int], name: str
    ) -> None:
        fleets = [Replicas(5) for _ in range(2)]
        for replicas in fleets:
            for endpoint, requests in zip(replicas.snapshot.endpoints, loads, strict=True):
                replicas.load(endpoint, requests, 100.0 * requests)
        one, other = (replicas.send(query(name)).endpoint for replicas in fleets)
        assert one == other

    def test_sidecars_with_similar_information_choose_the_same_endpoint(self) -> None:
        # Each sidecar sees the others' requests late, or not at all.
        one, other = Replicas(8), Replicas(8)
        random = Random(7)
        for replicas in (one, other):
            for endpoint in replicas.snapshot.endpoints:
                replicas.load(endpoint, 40 + random.randrange(3))
        names = [f"prompt {number}" for number in range(100)]
        agreed = sum(one.first(query(n)).endpoint == other.first(query(n)).endpoint for n in names)
        assert agreed > 90


class TestSharedSystemPrompt:
    LONG = rules("rules", 3200)
    SHORT = rules("rules", 320)

    def homes(self, replicas: Replicas, after: Prompt, tokens: int = 1000) -> set[str]:
        """Return the home endpoints of sessions that no endpoint has cached."""
        asked = [query(f"session {number}", tokens, after=after) for number in range(30)]
        return {replicas.first(one).endpoint.address for one in asked}

    @pytest.mark.parametrize("tokens", [100, 10_000])
    def test_determines_the_home_endpoint(self, tokens: int) -> None:
        replicas = Replicas(8)
        place = self.LONG.system_hash
        assert place is not None
        assert self.homes(replicas, self.LONG, tokens) == {replicas.ring_from(place)[0].address}

    def test_short_one_does_not_determine_the_home_endpoint(self) -> None:
        replicas = Replicas(8)
        assert len(self.homes(replicas, self.SHORT)) > 4

    def test_does_not_determine_the_home_endpoint_once_all_have_it(self) -> None:
        replicas = Replicas(8)
        for address in replicas.addresses:
            replicas.signals.prefixes.sent(address, self.LONG.blocks)
        assert len(self.homes(replicas, self.LONG)) > 4

    def test_header_determines_the_home_endpoint_instead(self) -> None:
        replicas = Replicas(8, by_header=True)
        assert len(self.homes(replicas, self.LONG)) > 4
        asked = query("session", 1000, after=self.LONG)
        assert replicas.first(asked).endpoint == replicas.ring_from(key("session"))[0]

    def test_determines_the_home_endpoint_without_the_header(self) -> None:
        replicas = Replicas(8)
        asked = query("session", 1000, after=self.LONG)._replace(key=None)
        assert len({replicas.first(asked).endpoint for _ in range(20)}) == 1

    def test_requests_go_to_the_endpoint_that_has_it_cached(self) -> None:
        replicas = Replicas(8)
        home = replicas.serve(query("first", 1000, after=self.LONG)).endpoint
        for number in range(20):
            candidate = replicas.serve(query(f"{number}", 1000, after=self.LONG))
            assert (candidate.endpoint, candidate.reason) == (home, Reason.CACHED)
            assert candidate.prediction == (4200, 3200)

    def test_spreads_if_its_home_endpoint_is_busy(self) -> None:
        replicas = Replicas(8)
        asked = (query(f"{number}", 200, after=self.LONG) for number in range(1200))
        went = Counter(replicas.send(one).endpoint.address for one in asked)
        assert len(went) == 8
        assert max(went.values()) < 2 * 150
        assert min(went.values()) > 150 / 2

    @pytest.mark.parametrize("count", [2, 4, 8])
    @pytest.mark.parametrize("tokens", [2000, 8000])
    def test_spreads_if_its_home_endpoint_has_hundreds_of_requests(
        self, count: int, tokens: int
    ) -> None:
        # The prompts are computed at once, so only the requests in flight show the load.
        replicas = Replicas(count)
        for number in range(50 * count):
            replicas.send(query(f"{number}", 200, after=rules("rules", tokens)))
            replicas.leases[-1].finish_prefill()
        assert len(replicas.ledger.loads) == count
        assert max(replicas.ledger.loads.values()) < 3 * 50
