from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.engine_counters import FEW_MEANS
from extproc.core.fleet.engine_times import Slowness
from extproc.core.fleet.report import Load, Report, StepTotals
from extproc.core.fleet.sent_request import SentRequest
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query
from extproc.core.strategies.prefix_copies import Copied
from extproc.core.strategies.prefix_costs import PrefixCosts, Work
from extproc.core.strategies.tied_requests import TiedRequests
from tests.core.strategies.prefix_cache_replicas import (
    TOKENS,
    Replicas,
    costs,
    learn_speed,
    not_compiled,
    prompt,
    query,
    rules,
    set_slowness,
)


def talk(replicas: Replicas, turns: int = 6) -> Query:
    """Let a session send requests with short pauses, and return the last one."""
    asked = prompt("session", 1_000)
    for turn in range(turns):
        asked = prompt(f"turn {turn}", 1_000, after=asked)
        replicas.send(Query(prompt=asked))
        replicas.clock.now += 3
        replicas.leases.pop().release()
        replicas.clock.now += 3
    return Query(prompt=asked)


class TestCachedPromptInFlight:
    def test_counts_as_load_although_it_is_computed(self) -> None:
        replicas = Replicas(2)
        home = replicas.serve(query("long", 60_000)).endpoint
        (other,) = replicas.others(home)
        replicas.send(query("long", 60_000))
        replicas.leases[-1].finish_prefill()
        replicas.load(other, 1)
        assert replicas.signals.backlog.tokens == {}
        assert {replicas.first(query(f"{i}", 64)).endpoint for i in range(20)} == {other}

    def test_does_not_count_without_its_weight(self) -> None:
        replicas = Replicas(2, weights=WEIGHTS._replace(reading=0.0))
        home = replicas.serve(query("long", 60_000)).endpoint
        (other,) = replicas.others(home)
        replicas.send(query("long", 60_000))
        replicas.leases[-1].finish_prefill()
        replicas.load(other, 1)
        assert len({replicas.first(query(f"{i}", 64)).endpoint for i in range(20)}) == 2


class TestPausedSession:
    def test_keeps_new_sessions_away_from_its_endpoint(self) -> None:
        replicas = Replicas(2)
        home = replicas.first(talk(replicas)).endpoint
        new = {replicas.first(query(f"new {i}", 1_000)).endpoint for i in range(20)}
        assert new == {*replicas.others(home)}

    def test_stays_on_its_endpoint(self) -> None:
        replicas = Replicas(2)
        asked = talk(replicas)
        home = replicas.first(asked).endpoint
        assert asked.prompt is not None
        following = Query(prompt=prompt("next", 1_000, after=asked.prompt))
        assert replicas.first(following).endpoint == home

    def test_does_not_count_for_its_own_next_request(self) -> None:
        replicas = Replicas(2)
        asked = talk(replicas)
        waiting = costs(replicas).of(Work(0, {}))
        home = replicas.addresses.index(replicas.first(asked).endpoint.address)
        ended = costs(replicas).of(Work(0, {}, continued=[home]))
        assert waiting[home] > ended[home] == ended[1 - home]

    @not_compiled
    def test_is_found_only_where_most_is_cached_beyond_the_system_prompt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(8)
        system = rules("agents", 2_000)
        for endpoint in replicas.snapshot.endpoints:
            replicas.signals.prefixes.sent(endpoint.address, system.blocks)
        asked = Query(prompt=prompt("session", 2_000, after=system))
        home = replicas.serve(asked).endpoint
        read = list[str]()
        find = replicas.signals.prefixes.run_ending

        def spy(address: str, blocks: Sequence[int], depth: int) -> int:
            read.append(address)
            return find(address, blocks, depth)

        monkeypatch.setattr(replicas.signals.prefixes, "run_ending", spy)
        replicas.first(Query(prompt=prompt("another", 2_000, after=system)))
        assert not read
        replicas.first(asked)
        assert read == [home.address]

    @not_compiled
    def test_is_not_one_with_a_request_in_flight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replicas = Replicas(2)
        asked = talk(replicas)
        continued = list[Sequence[int]]()
        compute = PrefixCosts.of

        def spy(costs: PrefixCosts, work: Work) -> list[float]:
            continued.append(work.continued)
            return compute(costs, work)

        monkeypatch.setattr(PrefixCosts, "of", spy)
        home = replicas.send(asked).endpoint
        replicas.first(asked)
        assert continued == [[replicas.addresses.index(home.address)], []]

    def test_stays_there_with_a_prompt_that_is_remembered_in_part(self) -> None:
        # The sidecar hashes the first 2,048 blocks of a prompt: here, a sixth of it.
        replicas = Replicas(3)
        for endpoint in replicas.snapshot.endpoints:
            replicas.scrape(endpoint, cache_tokens=4_000_000)
        asked = Query(prompt=prompt("session", 131_072)._replace(bytes=4 * 750_000))
        homes = set()
        for _ in range(4):
            homes.add(replicas.send(asked).endpoint)
            replicas.clock.now += 1
            replicas.leases.pop().release()
            replicas.clock.now += 1
        assert len(homes) == 1

    @pytest.mark.parametrize(
        ("shown", "tokens", "stays"),
        [(prompt("session", 131_072), 750_000, True), (rules("agents", 4_000), 100_000, False)],
        ids=["history", "system prompt"],
    )
    def test_stays_among_requests_of_others_if_history_is_compared(
        self, shown: Prompt, tokens: int, stays: bool
    ) -> None:
        replicas = Replicas(2)
        for endpoint in replicas.snapshot.endpoints:
            replicas.scrape(endpoint, cache_tokens=4_000_000)
        asked = Query(prompt=shown._replace(bytes=4 * tokens))
        home = replicas.serve(asked).endpoint
        replicas.load(home, 3)
        assert (replicas.first(asked).endpoint == home) is stays

    def test_no_longer_counts_after_twice_its_usual_pause(self) -> None:
        replicas = Replicas(2)
        talk(replicas)
        replicas.clock.now += 60
        new = {replicas.first(query(f"new {i}", 1_000)).endpoint for i in range(20)}
        assert len(new) == 2


class TestPopularPrefix:
    SYSTEM = rules("all", 8_000)

    def question(self, number: int) -> Query:
        return Query(prompt=prompt(f"question {number}", 64, after=self.SYSTEM))

    def burst(self, replicas: Replicas, requests: int) -> Counter[str]:
        """Send questions at a rate of fifty a second, which stay in flight."""
        found: Counter[str] = Counter()
        for number in range(requests):
            replicas.clock.now += 0.02
            found[replicas.send(self.question(number)).endpoint.address] += 1
        return found

    def test_reaches_all_endpoints_within_a_burst(self) -> None:
        found = self.burst(Replicas(16), 96)
        assert len(found) == 16
        assert max(found.values()) <= 12

    def test_stays_on_few_endpoints_without_its_weight(self) -> None:
        found = self.burst(Replicas(16, weights=WEIGHTS._replace(copies=0.0)), 64)
        assert len(found) < 12

    def test_gets_no_copy_if_other_endpoints_hold_as_much(self) -> None:
        replicas = Replicas(4)
        home = replicas.send(self.question(0)).endpoint
        for number, other in enumerate(replicas.others(home)):
            blocks = prompt(f"long {number}", 200_000).blocks
            held = SentRequest("", (blocks,), None, 200_000, 0)
            replicas.fleet.send("llama", other, held).finish_prefill()
        assert set(self.burst(replicas, 12)) == {home.address}

    def test_stays_on_one_endpoint_of_an_idle_fleet(self) -> None:
        replicas = Replicas(16)
        homes = {replicas.serve(self.question(number)).endpoint for number in range(50)}
        assert len(homes) == 1

    def test_gets_fewer_copies_if_caches_replace_their_contents_soon(self) -> None:
        replicas = Replicas(16)
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 1)
            replicas.signals.copies.computed(endpoint.address, 1e7)
        assert len(self.burst(replicas, 64)) < 12

    def served(self, replicas: Replicas, seconds: int) -> Counter[str]:
        """Send ten questions a second that engines begin to answer soon and end after a second."""
        found: Counter[str] = Counter()
        for number in range(10 * seconds):
            replicas.clock.now += 0.1
            found[replicas.send(self.question(number)).endpoint.address] += 1
            if len(replicas.leases) > 1:
                replicas.leases[-2].finish_prefill()
            if len(replicas.leases) > 10:
                replicas.leases.pop(0).release()
        return found

    def test_that_is_new_waits_for_proof_before_all_endpoints_get_it(self) -> None:
        assert len(self.served(Replicas(16), 10)) < 8

    def test_gets_more_copies_the_longer_it_is_in_use(self) -> None:
        soon, later = (len(self.served(Replicas(16), seconds)) for seconds in (10, 200))
        assert later > soon

    def test_gets_no_copy_that_takes_longer_than_to_wait_for_an_old_one(self) -> None:
        replicas = Replicas(4)
        home = replicas.send(self.question(0)).endpoint
        for other in replicas.others(home):
            replicas.load(other, 1, backlog=8_000)
        assert set(self.burst(replicas, 8)) == {home.address}

    def test_gets_no_copy_while_its_requests_fill_no_endpoint_to_the_mean(self) -> None:
        replicas = Replicas(4)
        for number in range(30):  # so a request counts as few tokens
            replicas.serve(query(f"short {number}", 64))
        home = replicas.send(self.question(0)).endpoint
        replicas.leases[-1].finish_prefill()
        replicas.load(home, 60)
        for other in replicas.others(home):
            replicas.load(other, 4)
        found: Counter[str] = Counter()
        for number in range(1, 20):  # the mean becomes 23
            replicas.clock.now += 0.2
            found[replicas.send(self.question(number)).endpoint.address] += 1
            replicas.leases[-1].finish_prefill()
        assert set(found) == {home.address}

    LONG = rules("long", 60_000)

    def together(self, replicas: Replicas, requests: int) -> Counter[str]:
        """Send questions behind a long prefix at one instant."""
        asked = [Query(prompt=prompt(f"{i}", 64, after=self.LONG)) for i in range(requests)]
        return Counter(replicas.send(one).endpoint.address for one in asked)

    @pytest.mark.parametrize("others", [0.0, 0.4])
    def test_is_computed_by_idle_endpoints_instead_of_waited_for(self, others: float) -> None:
        replicas = Replicas(8)
        for address in replicas.addresses:
            replicas.signals.copies.computed(address, 1e7)  # so few later uses are expected
            total = replicas.signals.totals.of(address)
            total.other_requests = others  # a mean: they had some a while ago
            total.add_up()
        assert len(self.together(replicas, 9)) == 8

    def test_is_waited_for_on_a_busy_fleet_if_few_requests_share_it(self) -> None:
        replicas = Replicas(4)
        home = replicas.send(self.question(0)).endpoint
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 10)
        replicas.clock.now += 1
        assert {replicas.send(self.question(n)).endpoint for n in range(1, 6)} == {home}

    def test_is_waited_for_if_the_others_have_requests(self) -> None:
        replicas = Replicas(4)
        home = replicas.send(Query(prompt=prompt("first", 64, after=self.LONG))).endpoint
        for other in replicas.others(home):
            replicas.load(other, 1)
        assert set(self.together(replicas, 3)) == {home.address}

    def test_of_a_request_with_several_prompts_gets_no_copies(self) -> None:
        replicas = Replicas(4)
        together = self.SYSTEM._replace(other_chains=[prompt("other").blocks])
        for _ in range(5):
            replicas.send(Query(prompt=together))
        assert replicas.signals.copies.demand(self.SYSTEM.blocks[-1]) == 0


class TestFullCache:
    @pytest.fixture
    def replicas(self) -> Replicas:
        """Return two, for which paused sessions do not count as requests."""
        return Replicas(2, weights=WEIGHTS._replace(returning=0.0))

    def fill(self, replicas: Replicas) -> Query:
        """Let a session fill the cache of its endpoint, and return its last request."""
        asked = talk(replicas)
        replicas.signals.prefixes.resize(replicas.first(asked).endpoint.address, 7_000)
        replicas.clock.now += 1
        return asked

    def chosen(self, replicas: Replicas) -> set[Endpoint]:
        """Return the endpoints that get new prompts."""
        return {replicas.first(query(f"new {i}", 4_000)).endpoint for i in range(20)}

    def test_costs_what_its_session_will_miss(self, replicas: Replicas) -> None:
        home = replicas.first(self.fill(replicas)).endpoint
        assert self.chosen(replicas) == {*replicas.others(home)}

    def test_gets_no_copy_of_a_prefix_only_because_it_is_idle(self, replicas: Replicas) -> None:
        home = replicas.first(self.fill(replicas)).endpoint
        long = rules("long", 60_000)
        asked = [Query(prompt=prompt(f"{i}", 64, after=long)) for i in range(4)]
        assert {replicas.send(one).endpoint for one in asked} == {*replicas.others(home)}

    def test_costs_nothing_while_there_is_room(self, replicas: Replicas) -> None:
        talk(replicas)
        assert len(self.chosen(replicas)) == 2

    def test_costs_nothing_after_its_session_has_ended(self, replicas: Replicas) -> None:
        self.fill(replicas)
        replicas.clock.now += 60
        assert len(self.chosen(replicas)) == 2

    def test_keeps_its_session(self, replicas: Replicas) -> None:
        asked = self.fill(replicas)
        assert asked.prompt is not None
        following = Query(prompt=prompt("next", 1_000, after=asked.prompt))
        assert replicas.first(following).endpoint == replicas.first(asked).endpoint

    def test_gives_away_a_session_if_misses_would_evict_others_again(
        self, replicas: Replicas
    ) -> None:
        asked = talk(replicas)
        home = replicas.first(asked).endpoint
        replicas.signals.prefixes.sent(home.address, prompt("other", 14_000).blocks)
        replicas.signals.prefixes.resize(home.address, 21_000)
        replicas.clock.now += 1
        grown = Query(prompt=prompt("grown", 14_000, after=asked.prompt))
        assert replicas.first(grown).endpoint != home

    def test_costs_nothing_for_a_prompt_that_is_cached(self) -> None:
        replicas = Replicas(2, weights=WEIGHTS._replace(answer=0.0))
        asked = query("session", 100 * TOKENS)
        for _ in range(3):
            home = replicas.serve(asked).endpoint
            replicas.clock.now += 3
        replicas.signals.prefixes.resize(home.address, 100 * TOKENS)
        assert replicas.first(asked).prediction == (100 * TOKENS, 100 * TOKENS)


class TestPromptThatDoesNotFit:
    """One of two endpoints has 10,000 of its 40,000 tokens, and room for 31,500 in its cache."""

    @pytest.fixture
    def replicas(self) -> Replicas:
        replicas = Replicas(2, weights=WEIGHTS._replace(copies=0))
        for endpoint in replicas.snapshot.endpoints:
            replicas.scrape(endpoint)
        return replicas

    @pytest.fixture
    def home(self, replicas: Replicas) -> Endpoint:
        return replicas.serve(query("history", 10_000)).endpoint

    def following(self, replicas: Replicas, home: Endpoint, cache_tokens: int | None) -> Endpoint:
        """Return the endpoint of the next turn after a reading with this size of the caches."""
        for endpoint in replicas.snapshot.endpoints:
            usage = 0.69 if endpoint == home else 0.0
            replicas.scrape(endpoint, cache_tokens=cache_tokens, kv_usage=usage)
        replicas.clock.now += 1
        return replicas.first(query("turn", 30_000, after=prompt("history", 10_000))).endpoint

    def test_leaves_what_is_cached_rather_than_to_wait_for_room(
        self, replicas: Replicas, home: Endpoint
    ) -> None:
        assert self.following(replicas, home, 150_000) != home

    def test_stays_if_the_size_of_the_cache_is_unknown(
        self, replicas: Replicas, home: Endpoint
    ) -> None:
        assert self.following(replicas, home, None) == home

    def test_needs_no_room_for_what_a_request_in_flight_uses(
        self, replicas: Replicas, home: Endpoint
    ) -> None:
        replicas.serve(query("session", 1_000, after=prompt("history", 10_000)))
        replicas.send(query("another", 1_000, after=prompt("history", 10_000)))
        replicas.load(next(replicas.others(home)), 1, backlog=1_000)
        assert self.following(replicas, home, 150_000) == home

    def test_needs_room_for_all_other_tokens(self, replicas: Replicas) -> None:
        for address in replicas.addresses:
            replicas.signals.totals.of(address).room = 1_000
        found = costs(replicas)
        all_of_it, less = (
            found.of(Work(11_000, {0: 10_000}, in_use=used, not_compared=5_000))[0]
            for used in (0, 8_000)
        )
        assert all_of_it - less == pytest.approx(8_000)
        compared = found.of(Work(11_000, {0: 10_000}))[0]
        assert all_of_it - compared == pytest.approx(5_000)


class TestSlowEndpoint:
    def test_gets_fewer_requests(self) -> None:
        replicas = Replicas(3)
        slow, *others = replicas.snapshot.endpoints
        for endpoint in replicas.snapshot.endpoints:
            learn_speed(replicas, endpoint, seconds=3 if endpoint == slow else 1)
        found = Counter(replicas.send(query(f"{i}")).endpoint for i in range(30))
        assert found[slow] < min(found[other] for other in others) / 2

    def test_is_known_by_its_steps_if_all_prompts_are_short(self) -> None:
        replicas = Replicas(3)
        slow, *others = replicas.snapshot.endpoints
        self.decode(replicas, slow, step=0.03)
        for other in others:
            self.decode(replicas, other, step=0.01)
        found = Counter(replicas.send(query(f"{i}")).endpoint for i in range(30))
        assert found[slow] < min(found[other] for other in others) / 2

    def test_may_be_one_without_requests_in_a_mixed_fleet(self) -> None:
        replicas = Replicas(4)
        *fast, slow, unknown = replicas.snapshot.endpoints
        self.decode(replicas, slow, step=0.04)
        for endpoint in fast:
            self.decode(replicas, endpoint, step=0.01)
        found = Counter(replicas.send(query(f"{i}")).endpoint for i in range(60))
        assert found[slow] < found[unknown] < min(found[one] for one in fast) / 1.2

    def test_gets_no_copy_while_fast_ones_can_serve_a_popular_prefix(self) -> None:
        replicas = Replicas(4)
        endpoints = replicas.snapshot.endpoints
        for number, endpoint in enumerate(endpoints):
            self.decode(replicas, endpoint, step=0.01 if number < 2 else 0.02)
        found = TestPopularPrefix().served(replicas, 30)
        assert set(found) == {endpoint.address for endpoint in endpoints[:2]}

    def test_is_slower_with_what_it_evicts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        replicas = Replicas(2)
        slow, _ = replicas.addresses
        known = Slowness(prompts={slow: 2.0}, steps={})
        set_slowness(monkeypatch, replicas, known)
        monkeypatch.setattr(replicas.signals.prefixes, "age", lambda address: 1.0)
        monkeypatch.setattr(replicas.signals.contexts, "continued_after", lambda seconds: 0.5)
        found = costs(replicas)
        first, second = found.of(Work(8_000, {}))
        assert second == pytest.approx(2 * 8_000 + 1)
        assert first == pytest.approx(2 * 2 * 8_000 + 1)

    @pytest.mark.parametrize(("tokens", "factor"), [(0, 3), (1e9, 2)])
    def test_may_be_slower_in_steps_than_in_prompts(
        self, tokens: float, factor: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(2)
        slow, _ = replicas.addresses
        known = Slowness(prompts={slow: 2.0}, steps={slow: 3.0})
        set_slowness(monkeypatch, replicas, known)
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 5)
        found, usual = costs(replicas).of(Work(tokens, {}))
        assert found == pytest.approx(factor * usual)

    def test_takes_longer_to_make_room_and_for_requests_that_are_not_known_yet(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(2)
        slow, other = replicas.addresses
        known = Slowness(prompts={slow: 2.0}, steps={slow: 3.0})
        set_slowness(monkeypatch, replicas, known)
        before = costs(replicas).of(Work(1_000, {}))
        for address in (slow, other):
            replicas.signals.totals.of(address).room = 0.0
        found = costs(replicas)
        full = found.of(Work(1_000, {}))
        assert full[0] - before[0] == pytest.approx(2 * (full[1] - before[1]))
        monkeypatch.setattr(replicas.signals.unseen, "mean", 1.0)
        later = [found.with_unseen(position, full[position]) for position in (0, 1)]
        share, here = WEIGHTS.batch + WEIGHTS.balance, WEIGHTS.batch / 2 + WEIGHTS.balance
        answer = share * WEIGHTS.answer
        assert later[0] - full[0] == pytest.approx(2 * here * 1_000 + 3 * answer)
        assert later[1] - full[1] == pytest.approx(here * 1_000 + answer)

    def decode(self, replicas: Replicas, endpoint: Endpoint, step: float) -> None:
        """Let an endpoint report steps of so many seconds."""
        for steps in range(0, 20 * (FEW_MEANS + 2), 20):
            totals = StepTotals(steps, 0, steps * step, steps)
            report = Report(Load(0, 0.0), 0, steps=totals)
            replicas.signals.record_scrape(endpoint.address, report, inflight=0)


class TestWait:
    def test_includes_the_present_step_of_an_endpoint_with_requests(self) -> None:
        for weights, is_left in ((WEIGHTS, True), (WEIGHTS._replace(step=0.0), False)):
            replicas = Replicas(2, weights=weights)
            home = replicas.send(query("prompt", 5 * TOKENS)).endpoint
            replicas.leases[-1].finish_prefill()
            assert (replicas.first(query("prompt", 5 * TOKENS)).endpoint != home) == is_left


class TestDelayOfOthers:
    def delay(self, tokens: float = 8_000, requests: int = 10) -> float:
        """Return how much more a prompt costs on an endpoint with requests than on an idle one."""
        replicas = Replicas(2)
        replicas.load(replicas.snapshot.endpoints[0], requests)
        busy, idle = costs(replicas).of(Work(tokens, {}))
        return busy - idle

    def test_includes_that_of_requests_that_paused_sessions_will_send(self) -> None:
        replicas = Replicas(2)
        home = replicas.addresses.index(replicas.first(talk(replicas)).endpoint.address)
        found = costs(replicas).of(Work(8_000, {}))
        assert found[home] > found[1 - home] + 1_000

    def test_rises_with_the_tokens_that_all_wait_for(self) -> None:
        assert self.delay(16_000) > 1.9 * self.delay(8_000)

    @not_compiled
    def test_depends_by_half_of_the_batch_on_the_mean_of_all_endpoints(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(2)
        replicas.load(replicas.snapshot.endpoints[0], 10)
        monkeypatch.setattr(PrefixCosts, "_expected_requests", lambda _: 1.0)
        replicas.signals.totals.of(replicas.addresses[1]).paused = 2  # they count like others
        found = costs(replicas)
        none, some = (found.of(Work(tokens, {})) for tokens in (0, 8_000))
        more = [cost - before for cost, before in zip(some, none, strict=True)]
        mean, balance = 6, WEIGHTS.balance / ((2 + 6) / 2 + 1)
        factors = [1 + WEIGHTS.batch * (there + mean) / 2 + balance * there for there in (10, 2)]
        assert more == pytest.approx([8_000 * factor for factor in factors])

    def test_is_that_of_an_answer_if_the_prompt_is_cached(self) -> None:
        share = WEIGHTS.batch + WEIGHTS.balance / 3.5  # the middle of none and the mean is 2.5
        assert self.delay(0) == pytest.approx(WEIGHTS.step + 10 * share * WEIGHTS.answer)

    def test_is_less_for_each_of_many_requests(self) -> None:
        assert self.delay(requests=100) < 5 * self.delay(requests=10)


class TestBusyFleet:
    @pytest.mark.parametrize(("waiting", "stays"), [(0, False), (8, True)])
    def test_keeps_a_prompt_on_the_endpoint_that_has_it(self, waiting: int, stays: bool) -> None:
        replicas = Replicas(3)
        home = replicas.serve(query("prompt", 8_000)).endpoint
        for endpoint in replicas.snapshot.endpoints:
            for _ in range(waiting + 4 * (endpoint == home)):
                replicas.load(endpoint, 1, backlog=4_000)
        replicas.clock.now += 1
        assert (replicas.first(query("prompt", 8_000)).endpoint == home) == stays

    def test_is_one_in_which_prompts_wait_on_most_endpoints(self) -> None:
        replicas = Replicas(2)
        home = replicas.serve(query("prompt", 8_000)).endpoint
        for _ in range(10):
            replicas.load(home, 1, backlog=4_000)
        replicas.clock.now += 1
        assert replicas.first(query("prompt", 8_000)).endpoint != home

    @pytest.mark.parametrize(
        ("waiting", "mean", "prompts"),
        [(12_000, 1_000, 2), (12_000, 6_000, 1), (4_000, 1_000, 0), (1_000, 1_000, 0)],
    )
    def test_counts_the_prompts_after_the_first_on_the_median_endpoint(
        self, waiting: float, mean: float, prompts: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(3)
        slow, *_ = replicas.addresses
        known = Slowness(prompts={slow: 2.0}, steps={})
        set_slowness(monkeypatch, replicas, known)
        for address, tokens in zip(replicas.addresses, (0, waiting, 90_000), strict=True):
            replicas.signals.totals.of(address).backlog = tokens
        replicas.signals.backlog.mean = mean
        found = costs(replicas)
        none, some = (found.of(Work(tokens, {})) for tokens in (0, 1_000))
        more = [cost - before for cost, before in zip(some, none, strict=True)]
        later = WEIGHTS.crowd * prompts * 1_000
        assert more == pytest.approx([2_000 + later, 1_000 + later, 1_000 + later])

    @pytest.mark.parametrize("waiting", [0, 12_000])
    def test_needs_slow_endpoints_as_the_home_of_as_many_prompts(
        self, waiting: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(3)
        slow, *_ = replicas.addresses
        known = Slowness(prompts={slow: 2.0}, steps={})
        set_slowness(monkeypatch, replicas, known)
        for address in replicas.addresses:
            replicas.signals.totals.of(address).backlog = waiting
        shares = costs(replicas).home_shares
        assert shares == {} if waiting else shares[slow] < 0.5

    def test_counts_less_the_more_requests_come_from_sidecars_that_share_nothing(self) -> None:
        replicas = Replicas(2)
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, 1)
            replicas.scrape(endpoint, running=4)
            total = replicas.signals.totals.of(endpoint.address)
            total.backlog, total.requests = 12_000, 0
        found = costs(replicas)
        none, some = (found.of(Work(tokens, {})) for tokens in (0, 1_000))
        known = 1 / 4  # of four requests
        more = [cost - before for cost, before in zip(some, none, strict=True)]
        assert more == pytest.approx([1_000 * (1 + known * WEIGHTS.crowd * 2)] * 2)
        loading = found.of(Work(0, {}, loading=[0, 1_000]))  # engines report adapters
        assert loading[1] - loading[0] == pytest.approx(1_000 * (1 + WEIGHTS.crowd * 2))

    def test_includes_a_step_as_probable_as_a_request_of_others(self) -> None:
        replicas = Replicas(4)
        for address, mean in zip(replicas.addresses, (0.0, 0.25, 1.0, 3.0), strict=True):
            replicas.signals.totals.of(address).requests = mean
        idle, quarter, one, several = costs(replicas).of(Work(0, {}))
        per_request = (several - one) / 2
        assert one - idle == pytest.approx(WEIGHTS.step + per_request)
        assert quarter - idle == pytest.approx((WEIGHTS.step + per_request) / 4)

    def test_prompts_wait_for_the_backlog_and_delay_those_behind_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replicas = Replicas(2)
        for endpoint, backlog in zip(replicas.snapshot.endpoints, (12_000, 16_000), strict=True):
            replicas.load(endpoint, 1)
            replicas.scrape(endpoint, running=4)
            replicas.signals.totals.of(endpoint.address).backlog = backlog
        known = Slowness(prompts={replicas.addresses[0]: 2.0}, steps={})
        set_slowness(monkeypatch, replicas, known)
        found = costs(replicas)
        found.of(Work(1_000, {1: 400}))
        behind = WEIGHTS.crowd * 2 / 4  # two prompts wait, and a quarter of the requests is known
        assert found.prompt_wait(0) == pytest.approx(2 * (12_000 + 1_000) + behind * 1_000)
        assert found.prompt_wait(1) == pytest.approx(16_000 + 600 + behind * 600)

    def test_is_busy_no_longer_when_its_prompts_are_computed(self) -> None:
        replicas = Replicas(3)
        home = replicas.serve(query("prompt", 8_000)).endpoint
        for endpoint in replicas.snapshot.endpoints:
            learn_speed(replicas, endpoint)
        for endpoint in replicas.snapshot.endpoints:
            for _ in range(78 if endpoint == home else 8):
                replicas.load(endpoint, 1, backlog=4_000)
        replicas.first(query("other", 8_000))
        replicas.clock.now += 60  # the others are idle, and its endpoint is not
        assert replicas.first(query("prompt", 8_000)).endpoint != home


class TestCopy:
    def test_counts_only_where_it_would_be_ready_soon(self) -> None:
        replicas = Replicas(2)
        replicas.load(replicas.snapshot.endpoints[1], 1, backlog=4_000)
        soon, late = costs(replicas).of(Work(8_000, {}, Copied(7_000, soon=3_000)))
        assert late > soon + 7_000 + 4_000


class TestDelayByCopy:
    """Requests that are tied to an endpoint wait while it computes a copy of another prefix."""

    @pytest.fixture
    def replicas(self) -> Replicas:
        replicas = Replicas(2)
        for endpoint in replicas.snapshot.endpoints:
            learn_speed(replicas, endpoint)
        return replicas

    def delays(self, replicas: Replicas, work: Work) -> list[float]:
        """Return how much dearer the work is on each endpoint with one tied request a second."""
        none, found = costs(replicas).of(work), list[float]()
        for position, address in enumerate(replicas.addresses):
            tied = TiedRequests(replicas.clock.now)
            for _ in range(30):
                tied.sent(address, 30_000, 30_000)
            found.append(costs(replicas, tied).of(work)[position] - none[position])
        return found

    @pytest.mark.parametrize(
        ("tokens", "backlog", "wait"),
        [(20_000, 0, 10_000), (40_000, 0, 20_000), (40_000, 5_000, 25_000), (90_000, 0, 30_000)],
        ids=["half of it", "twice as much", "behind others", "at most their prompts"],
    )
    def test_grows_with_the_time_until_the_copy_is_complete(
        self, replicas: Replicas, tokens: float, backlog: float, wait: float
    ) -> None:
        for address in replicas.addresses:
            total = replicas.signals.totals.of(address)
            total.known_backlog = backlog
            total.add_up()
        come = 8_000 / replicas.signals.speeds.tokens(replicas.addresses[0], 1.0)
        found = self.delays(replicas, Work(tokens, {}, Copied(8_000)))
        assert found == pytest.approx([come * wait, come * wait])

    @pytest.mark.parametrize(
        ("cached", "saved", "own"),
        [(0, 12_000, 20_000), (4_000, 8_000, 16_000), (12_000, 0, 8_000), (25_000, 0, 0)],
        ids=["no cache", "a part", "the prefix", "more than the prompt"],
    )
    def test_is_that_of_what_the_copy_would_save_there(
        self, replicas: Replicas, cached: float, saved: float, own: float
    ) -> None:
        work = Work(20_000, {0: cached} if cached else {}, Copied(12_000))
        speed = replicas.signals.speeds.tokens(replicas.addresses[0], 1.0)
        assert self.delays(replicas, work)[0] == pytest.approx(saved / speed * own / 2)

    def test_does_not_depend_on_the_adapter_that_the_request_loads(
        self, replicas: Replicas
    ) -> None:
        work = Work(20_000, {}, Copied(8_000))
        loading = work._replace(loading=(500.0, 500.0))
        assert self.delays(replicas, loading) == pytest.approx(self.delays(replicas, work))

    def test_is_longer_on_a_slow_endpoint_where_a_copy_saves_less(
        self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_slowness(monkeypatch, replicas, Slowness({replicas.addresses[0]: 3.0}, {}))
        slow, usual = self.delays(replicas, Work(20_000, {}, Copied(6_000)))
        assert slow == pytest.approx(usual)  # three times as long, for a third of the tokens

    def test_is_not_known_while_the_speed_is_not(self) -> None:
        assert self.delays(Replicas(2), Work(20_000, {}, Copied(8_000))) == [0, 0]


_EVENTS = ["send", "first token", "end", "move", "scrape", "churn"]
_Events = st.lists(st.tuples(st.sampled_from(_EVENTS), st.integers(0, 100)), max_size=40)


class TestLoads:
    """Costs read one object per endpoint, which outlives most changes of the fleet."""

    @given(_Events)
    def test_are_those_that_new_costs_find(self, events: Sequence[tuple[str, int]]) -> None:
        replicas = Replicas(3, replication=4)
        kept = costs(replicas)
        for event, pick in events:
            self.happen(replicas, event, pick)
            new = costs(replicas)  # this ends paused sessions, which `kept` counts next
            kept.refresh(replicas.clock.now)
            assert kept.of(Work(1_000, {})) == new.of(Work(1_000, {}))
            loads = zip(kept.copies._totals, new.copies._totals, strict=True)
            assert all(one is other for one, other in loads)

    def happen(self, replicas: Replicas, event: str, pick: int) -> None:
        """Change the fleet in one way."""
        endpoints, leases = replicas.snapshot.endpoints, replicas.leases
        endpoint = endpoints[pick % 3]
        replicas.clock.now += (
            0.02 + pick / 100
        )  # so waiting prompts and paused sessions are counted
        if event == "send":
            replicas.send(query(f"prompt {pick % 5}"))
        elif event == "scrape":
            replicas.scrape(endpoint, running=pick % 7, waiting=pick % 2, kv_usage=0.9)
        elif event == "churn":
            present = [one for one in endpoints if one != endpoint or pick % 2]
            replicas.fleet.set_models({"llama": Snapshot.of(present, 4)})
            replicas.signals.set_endpoints([one.address for one in present])
        elif leases and event == "first token":
            leases[pick % len(leases)].finish_prefill()
        elif leases and event == "move":
            leases[pick % len(leases)].move(endpoint)
        elif leases:
            leases.pop(pick % len(leases)).release()
