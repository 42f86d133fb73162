from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.signals import Signals
from extproc.core.fleet.weights import Weights
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query, Reason, prefix_views
from extproc.core.strategies.home_endpoints import HomeEndpoints
from extproc.core.strategies.prefix_copies import Copied
from extproc.core.strategies.prefix_costs import PrefixCosts, Work
from extproc.core.strategies.tied_requests import TiedRequests
from tests.core.strategies.prefix_cache_replicas import (
    TOKENS,
    Replicas,
    chain_of,
    key,
    learn_speed,
    not_compiled,
    prompt,
    query,
    rules,
)


class TestRequestWithoutPrompt:
    def test_goes_to_the_least_busy_endpoint(self) -> None:
        replicas = Replicas(4)
        for number, endpoint in enumerate(replicas.snapshot.endpoints):
            replicas.load(endpoint, 10 if number != 2 else 1)
        order = replicas.order(Query())
        assert order[0].endpoint == replicas.snapshot.endpoints[2]
        assert {candidate.reason for candidate in order} == {Reason.NO_PREFIX}
        assert {candidate.prediction for candidate in order} == {None}

    def test_backlog_counts(self) -> None:
        replicas = Replicas(4)
        for number, endpoint in enumerate(replicas.snapshot.endpoints):
            replicas.load(endpoint, 1, 50_000 if number != 2 else 100)
        assert replicas.first(Query()).endpoint == replicas.snapshot.endpoints[2]

    def test_does_not_overload_one_endpoint(self) -> None:
        replicas = Replicas(8)
        went = Counter(replicas.send(Query()).endpoint.address for _ in range(400))
        assert len(went) == 8
        assert max(went.values()) <= 1.5 * min(went.values())

    def test_goes_to_its_home_endpoint_with_a_header(self) -> None:
        replicas = Replicas(8, by_header=True)
        assert replicas.first(Query(key=7)).endpoint == replicas.ring_from(7)[0]

    def test_is_not_recorded(self) -> None:
        replicas = Replicas()
        replicas.serve(Query(key=7))
        assert len(replicas.signals.prefixes) == 0


class TestRequestWithSeveralPrompts:
    """Engines cache each prompt separately."""

    def both(self, one: str, other: str) -> Query:
        first, second = prompt(one), prompt(other)
        together = first._replace(bytes=first.bytes + second.bytes, other_chains=[second.blocks])
        return Query(key=key(one), prompt=together)

    def test_all_prompts_are_recorded_for_its_endpoint(self) -> None:
        replicas = Replicas()
        home = replicas.serve(self.both("one", "other")).endpoint
        for name in ("one", "other"):
            found = replicas.first(query(name))
            assert (found.endpoint, found.reason) == (home, Reason.CACHED)
            assert found.prediction == (4000, 62 * TOKENS)

    def test_prediction_adds_up_the_cached_blocks(self) -> None:
        replicas = Replicas(1)
        replicas.serve(query("other"))
        assert replicas.first(self.both("one", "other")).prediction == (8000, 62 * TOKENS)
        replicas.serve(query("one"))
        assert replicas.first(self.both("one", "other")).prediction == (8000, 2 * 62 * TOKENS)

    def test_goes_to_the_endpoint_with_most_cached_blocks(self) -> None:
        replicas = Replicas(2)
        one, other = replicas.snapshot.endpoints
        replicas.signals.prefixes.sent(one.address, prompt("a").blocks)
        for name in ("b", "c"):
            replicas.signals.prefixes.sent(other.address, prompt(name).blocks)
        asked = Query(
            prompt=prompt("a")._replace(bytes=48_000, other_chains=[*map(chain_of, "bc")])
        )
        assert replicas.first(asked).endpoint == other


class TestSession:
    def test_id_determines_the_home_endpoint_before_the_system_prompt(self) -> None:
        replicas = Replicas(8)
        asked = [
            query(f"{number}", after=rules("all", 4000))._replace(session=True)
            for number in range(40)
        ]
        homes = {replicas.first(one).endpoint for one in asked}
        assert len(homes) > 4
        assert len({replicas.first(one._replace(session=False)).endpoint for one in asked}) == 1


class TestTiedRequest:
    def test_is_one_that_goes_where_alone_its_prefix_is(self) -> None:
        replicas, asked = Replicas(2), query("document", 8_000)
        home = replicas.serve(asked).endpoint
        assert rates(replicas) == [0, 0]
        assert replicas.serve(asked).endpoint == home
        assert [rate > 0 for rate in rates(replicas)] == [
            one == home for one in replicas.snapshot.endpoints
        ]

    def test_is_not_one_that_goes_elsewhere(self) -> None:
        replicas, system = Replicas(2), rules("system", 1_000)
        home = replicas.serve(Query(prompt=prompt("document", 8_000, after=system))).endpoint
        replicas.load(home, 100, backlog=100_000)
        assert replicas.serve(Query(prompt=prompt("other", 1_000, after=system))).endpoint != home
        replicas.strategy._tied.fade(replicas.clock.now + 1_000)
        again = replicas.serve(Query(prompt=prompt("document", 8_000, after=system)))
        assert (again.endpoint != home, again.reason) == (True, Reason.SPARED)
        assert rates(replicas) == [0, 0]

    def test_counts_by_the_whole_prompt_of_which_its_endpoint_has_a_part(self) -> None:
        replicas = Replicas(2)
        known = prompt("document", 8_000)
        home = replicas.serve(Query(prompt=known)).endpoint
        replicas.serve(Query(prompt=prompt("question", 8_000, after=known)))
        rate = replicas.strategy._tied.rate(home.address)
        assert rate == pytest.approx(0.5 / 30, rel=0.01)

    def test_makes_copies_on_its_endpoint_dearer_until_it_fades(self) -> None:
        replicas, asked = Replicas(2), query("document", 8_000)
        for endpoint in replicas.snapshot.endpoints:
            learn_speed(replicas, endpoint)
        home = replicas.snapshot.endpoints.index(replicas.serve(asked).endpoint)
        for _ in range(9):
            replicas.serve(asked)
        copy = Work(20_000, {}, Copied(8_000))
        delays = []
        for seconds in (1, 300):
            replicas.clock.now += seconds
            replicas.first(query("another", 64))
            found = replicas.strategy._view.costs.of(copy)
            delays.append(found[home] - found[1 - home])
        assert delays[0] > 0
        assert delays[1] == 0


def rates(replicas: Replicas) -> list[float]:
    return [replicas.strategy._tied.rate(address) for address in replicas.addresses]


class TestAdapters:
    def replicas(self) -> Replicas:
        replicas = Replicas()
        served = [
            Endpoint(e.address, e.name, frozenset({"sql"} if number else ()))
            for number, e in enumerate(replicas.snapshot.endpoints)
        ]
        replicas.snapshot = Snapshot.of(served)
        return replicas

    def test_only_endpoints_with_the_adapter_are_candidates(self) -> None:
        replicas = self.replicas()
        order = replicas.order(query("prompt")._replace(adapter="sql"))
        assert [c.endpoint.address for c in order] != replicas.addresses
        assert {c.endpoint.address for c in order} == set(replicas.addresses[1:])
        assert replicas.order(query("prompt")._replace(adapter="law")) == []

    @not_compiled
    def test_endpoints_are_numbered_once_for_all_adapters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas, numbered = self.replicas(), list[int]()

        class Counted(PrefixCosts):
            def __init__(
                self,
                signals: Signals,
                weights: Weights,
                tied: TiedRequests,
                addresses: Sequence[str],
            ) -> None:
                super().__init__(signals, weights, tied, addresses)
                numbered.append(len(addresses))

        monkeypatch.setattr(prefix_views, "PrefixCosts", Counted)
        for adapter in ("", "sql", "", "sql"):
            replicas.first(query("prompt")._replace(adapter=adapter))
        assert numbered == [4, 3]

    def test_load_for_one_adapter_counts_for_others(self) -> None:
        replicas = Replicas(2)
        served = [
            Endpoint(e.address, e.name, frozenset({"sql"})) for e in replicas.snapshot.endpoints
        ]
        served[0] = replace(served[0], adapters=frozenset({"sql", "law"}))
        replicas.snapshot = Snapshot.of(served)
        assert len(replicas.order(query("one")._replace(adapter="sql"))) == 2
        for _ in range(3):
            replicas.send(query("other", 20_000)._replace(adapter="law"))
        assert replicas.first(query("one")._replace(adapter="sql")).endpoint == served[1]

    def test_load_of_other_endpoints_does_not_count(self) -> None:
        replicas = self.replicas()
        without, *with_it = replicas.snapshot.endpoints
        replicas.load(without, 1000, 1e6)
        home = replicas.serve(query("prompt")._replace(adapter="sql")).endpoint
        replicas.load(home, 200, 100_000)
        helper = replicas.first(query("prompt")._replace(adapter="sql")).endpoint
        assert helper in with_it
        assert helper != home

    def with_slots(self, slots: int) -> Replicas:
        """Return four busy endpoints with the adapter, of which one has it in memory."""
        replicas = self.replicas()
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 4)
        for address in replicas.addresses:
            replicas.signals.residency.observed(address, frozenset({"law"}), slots)
        return replicas

    def ask(self, number: int) -> Query:
        return query(f"question {number}", 400)._replace(adapter="sql")

    def test_rare_adapter_stays_where_it_is_loaded(self) -> None:
        replicas = self.with_slots(2)
        went = {replicas.serve(self.ask(number)).endpoint for number in range(20)}
        assert len(went) == 1

    def test_request_without_a_prompt_goes_where_its_adapter_is_loaded(self) -> None:
        replicas = self.with_slots(2)
        home = replicas.serve(self.ask(0)).endpoint
        asked = [Query(key=key(f"{number}"), adapter="sql") for number in range(20)]
        assert {replicas.first(one).endpoint for one in asked} == {home}

    def test_adapter_leaves_an_endpoint_that_may_hang(self) -> None:
        replicas = self.with_slots(2)
        home = replicas.serve(self.ask(0)).endpoint
        replicas.scrape(home, running=4)
        replicas.clock.advance(10)
        for endpoint in replicas.others(home):
            replicas.scrape(endpoint, running=4)
        assert replicas.first(self.ask(1)).endpoint != home

    def test_popular_adapter_spreads_over_free_slots(self) -> None:
        replicas = self.with_slots(2)
        went = Counter(replicas.send(self.ask(number)).endpoint for number in range(60))
        assert len(went) == 3
        assert max(went.values()) < 2 * min(went.values())

    def test_adapter_that_has_to_replace_another_spreads_later(self) -> None:
        free, taken = self.with_slots(2), self.with_slots(1)
        asked = [self.ask(number) for number in range(12)]
        spread = [len({each.send(one).endpoint for one in asked}) for each in (free, taken)]
        assert spread == [3, 1]

    def test_chosen_endpoint_counts_as_having_the_adapter(self) -> None:
        replicas = self.replicas()
        home = replicas.serve(query("prompt")._replace(adapter="sql")).endpoint
        assert replicas.signals.residency.has(home.address, "sql")


@not_compiled
class TestWork:
    """A conversation of which the sidecar compares 16,000 of 100,000 tokens."""

    LONG = prompt("conversation", 16_000)._replace(bytes=400_000)

    @pytest.fixture
    def replicas(self) -> Replicas:
        return Replicas(2)

    def work(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch, shown: Prompt = LONG
    ) -> Work:
        """Return the work that the next request of this conversation causes."""
        asked, compute = list[Work](), PrefixCosts.of

        def spy(costs: PrefixCosts, work: Work) -> list[float]:
            asked.append(work)
            return compute(costs, work)

        monkeypatch.setattr(PrefixCosts, "of", spy)
        found = replicas.first(Query(prompt=shown))
        assert found.prediction is not None
        assert 4 * found.prediction.prompt_tokens == shown.bytes
        return asked[-1]

    def test_is_all_of_a_prompt_without_history(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work = self.work(replicas, monkeypatch)
        assert (work.tokens, work.not_compared, work.cached) == (100_000, 0, {})

    def test_of_a_conversation_is_the_compared_part_and_needs_room_for_the_rest(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas.serve(Query(prompt=self.LONG))
        work = self.work(replicas, monkeypatch)
        assert work.tokens == 16_000 + TOKENS
        assert work.not_compared == 100_000 - work.tokens
        assert list(work.cached.values()) == [16_000]
        assert work.in_use == 0

    def test_shares_the_room_of_a_request_in_flight(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas.serve(Query(prompt=self.LONG))
        continued, other, new = (
            prompt(name, 1_000, after=self.LONG) for name in ("continued", "other", "new")
        )
        replicas.serve(Query(prompt=continued))
        replicas.send(Query(prompt=other))
        assert self.work(replicas, monkeypatch, new).in_use == 16_000

    def test_is_less_on_home_endpoints_by_the_compared_part_at_most(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = replicas.serve(Query(prompt=self.LONG)).endpoint
        for endpoint in replicas.snapshot.endpoints:  # all requests are others'
            replicas.scrape(endpoint, running=10)
        monkeypatch.setattr(HomeEndpoints, "repeated_share", lambda *_: 1.0)
        work = self.work(replicas, monkeypatch)
        other = replicas.addresses.index(next(replicas.others(home)).address)
        assert 0 < work.cached[other] <= work.tokens
