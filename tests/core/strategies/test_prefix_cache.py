"""Examples of PrefixCache with clear outcomes, so that the weights can be tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.ledger import Lease, Ledger
from extproc.core.fleet.signals import Load, Report, Signals
from extproc.core.fleet.subset import Subset, subset_of
from extproc.core.fleet.weights import WEIGHTS
from extproc.core.request.blocks import BLOCK_BYTES, Prompt
from extproc.core.schema import SignalsSpec
from extproc.core.strategies import Candidate, Query, Reason
from extproc.core.strategies.prefix_cache import PrefixCache
from tests.core.builders import brief, endpoints, thorough
from tests.core.clock import Clock, report

TOKENS = BLOCK_BYTES // 4  # in a block


def hashes(name: str, count: int) -> list[int]:
    return [xxhash.xxh64_intdigest(f"{name} {number}".encode()) for number in range(count)]


def prompt(name: str, tokens: int = 4000, *, after: Prompt | None = None) -> Prompt:
    """Return a prompt that shares only the prompt before it (`after`) with those of other names."""
    before = after or Prompt((), 0)
    blocks = [*before.blocks, *hashes(name, tokens // TOKENS)]
    return Prompt(blocks, before.bytes + 4 * tokens, before.system_blocks)


def rules(name: str, tokens: int) -> Prompt:
    """Return a system prompt, as the beginning of other prompts."""
    return prompt(name, tokens)._replace(system_blocks=tokens // TOKENS)


def chain_of(name: str) -> Sequence[int]:
    return prompt(name).blocks


def key(name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode())


def query(name: str, tokens: int = 4000, *, after: Prompt | None = None) -> Query:
    return Query(key=key(name), prompt=prompt(name, tokens, after=after))


class Replicas:
    """Endpoints with one sidecar. Its requests are in flight until a test releases them."""

    def __init__(self, count: int = 4, *, replication: int = 256, **options: Any) -> None:
        self.clock = Clock()
        self.snapshot = Snapshot.of(endpoints(count), replication)
        self.addresses = [endpoint.address for endpoint in self.snapshot.endpoints]
        self.ledger = Ledger()
        self.signals = Signals(self.clock, self.ledger)
        self.signals.set_endpoints(self.addresses)
        self.strategy = PrefixCache(self.signals, SignalsSpec(), Random(0), **options)
        self.leases: list[Lease] = []

    def order(self, asked: Query, snapshot: Snapshot | None = None) -> list[Candidate]:
        return list(self.strategy.rank(asked, snapshot or self.snapshot, self.ledger.loads))

    def first(self, asked: Query) -> Candidate:
        return next(self.strategy.rank(asked, self.snapshot, self.ledger.loads))

    def send(self, asked: Query) -> Candidate:
        """Send a request without a response yet."""
        best = self.first(asked)
        self.strategy.record_choice(asked, best.endpoint)
        new = 0.0
        if best.prediction is not None:
            new = best.prediction.prompt_tokens - best.prediction.cached_tokens
        self.load(best.endpoint, 1, new)
        return best

    def serve(self, asked: Query) -> Candidate:
        """Send a request and end it."""
        best = self.send(asked)
        self.leases.pop().release()
        return best

    def load(self, endpoint: Endpoint, requests: int, backlog: float = 0.0) -> None:
        """Put requests on an endpoint, the first of which have this many tokens to compute."""
        for number in range(requests):
            lease = self.ledger.acquire("llama", endpoint)
            if not number and backlog:
                lease.prefill = self.signals.backlog.add(endpoint.address, backlog)
            self.leases.append(lease)

    def scrape(self, endpoint: Endpoint, running: float = 0, **load: float) -> None:
        """Record a scrape of the endpoint."""
        report = Report(Load(**{"waiting": 0.0, "kv_usage": 0.0, **load}), running)
        inflight = self.ledger.loads.get(endpoint.address, 0)
        self.signals.record_scrape(endpoint.address, report, inflight)

    def ring_from(self, key: int) -> list[Endpoint]:
        return list(self.snapshot.walk(key, ""))

    def others(self, than: Endpoint) -> Iterator[Endpoint]:
        return (endpoint for endpoint in self.snapshot.endpoints if endpoint != than)


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


class TestOtherSidecars:
    """Only the engines' metrics show the requests of other sidecars."""

    def replicas(self, share: float, count: int = 8) -> Replicas:
        """Return engines with a few requests each, some of them from other sidecars."""
        replicas = Replicas(count)
        for endpoint in replicas.snapshot.endpoints:
            replicas.load(endpoint, round(4 * (1 - share)))
            replicas.scrape(endpoint, running=4)
        return replicas

    def test_have_probably_sent_a_prompt_to_its_home_endpoint(self) -> None:
        replicas = self.replicas(0.75)
        home, *_ = replicas.ring_from(key("prompt"))
        replicas.scrape(home, running=7)  # nearly twice the load of the others
        candidate = replicas.first(query("prompt"))
        assert (candidate.endpoint, candidate.reason) == (home, Reason.COLD)
        assert candidate.prediction == (4000, 0)  # only known cache hits are predicted

    def test_are_not_followed_to_an_overloaded_home_endpoint(self) -> None:
        replicas = self.replicas(0.75)
        home, second, *_ = replicas.ring_from(key("prompt"))
        replicas.scrape(home, running=60)
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

    def test_load_of_other_endpoints_does_not_count(self) -> None:
        replicas = self.replicas()
        without, *with_it = replicas.snapshot.endpoints
        replicas.load(without, 1000, 1e6)
        home = replicas.serve(query("prompt")._replace(adapter="sql")).endpoint
        replicas.load(home, 200, 100_000)
        helper = replicas.first(query("prompt")._replace(adapter="sql")).endpoint
        assert helper in with_it
        assert helper != home

    def test_chosen_endpoint_counts_as_having_the_adapter(self) -> None:
        replicas = self.replicas()
        home = replicas.serve(query("prompt")._replace(adapter="sql")).endpoint
        assert replicas.signals.residency.has(home.address, "sql")


class TestSubset:
    def test_only_its_endpoints_are_candidates(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [e.address for e in replicas.others(home)][:3]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert {candidate.endpoint.address for candidate in order} == set(allowed)
        assert [candidate.hops for candidate in order] == [0, 1, 2]
        assert {candidate.prediction for candidate in order} == {(4000, 0)}

    def test_home_endpoint_is_kept_if_it_is_included(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [home.address, next(replicas.others(home)).address]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert order[0].endpoint == home

    def test_reason_is_cold_if_no_included_endpoint_has_the_prompt(self) -> None:
        replicas = Replicas(6)
        home = replicas.serve(query("prompt")).endpoint
        allowed = [e.address for e in replicas.others(home)]
        order = replicas.order(query("prompt"), replicas.snapshot.restricted(subset(allowed)))
        assert {candidate.reason for candidate in order} == {Reason.COLD}

    def test_does_not_change_an_iteration_that_has_started(self) -> None:
        # Orders are lazy: the second candidate may be computed after another request's first.
        replicas = Replicas(6)
        begun = replicas.strategy.rank(query("prompt"), replicas.snapshot, replicas.ledger.loads)
        first = next(begun)
        allowed = subset(replicas.addresses[-2:])
        assert len(replicas.order(query("other"), replicas.snapshot.restricted(allowed))) == 2
        rest = [candidate.endpoint for candidate in begun]
        assert {first.endpoint, *rest} == set(replicas.snapshot.endpoints)


def subset(addresses: Sequence[str]) -> Subset:
    return subset_of(tuple(addresses))


@st.composite
def states(draw: st.DrawFn) -> tuple[Replicas, Query]:
    """Draw replicas with any load and any cached beginnings of a prompt, and a request for it."""
    weights = WEIGHTS._replace(nearly=draw(st.sampled_from([1.0, WEIGHTS.nearly])))
    replicas = Replicas(draw(st.integers(1, 6)), replication=4, weights=weights)
    asked = query("prompt", draw(st.integers(0, 20)) * TOKENS)
    prompt = asked.prompt
    assert prompt is not None
    for endpoint in replicas.snapshot.endpoints:
        replicas.load(endpoint, draw(st.integers(0, 5)), draw(st.sampled_from([0, 10, 5000])))
        cached = draw(st.integers(0, len(prompt.blocks)))
        replicas.signals.prefixes.sent(endpoint.address, prompt.blocks[:cached])
    if draw(st.booleans()):
        asked = asked._replace(key=None)
    return replicas, asked._replace(prompt=draw(st.sampled_from([prompt, prompt, None])))


class TestOrder:
    @thorough
    @given(states())
    def test_contains_every_endpoint_once(self, state: tuple[Replicas, Query]) -> None:
        replicas, asked = state
        order = replicas.order(asked)
        assert sorted(c.endpoint.address for c in order) == sorted(replicas.addresses)
        assert [c.hops for c in order] == list(range(len(order)))

    @thorough
    @given(states())
    def test_endpoint_that_is_better_in_everything_comes_first(
        self, state: tuple[Replicas, Query]
    ) -> None:
        replicas, asked = state
        # Without the tolerance for nearly equal costs.
        replicas.strategy._weights = replicas.strategy._weights._replace(nearly=1.0)
        ranked = [self.merits(replicas, asked, c.endpoint) for c in replicas.order(asked)]
        for place, one in enumerate(ranked):
            for later in ranked[place + 1 :]:
                better = all(x >= y for x, y in zip(later, one, strict=True))
                assert not better or later == one

    def merits(self, replicas: Replicas, asked: Query, endpoint: Endpoint) -> Sequence[float]:
        cached: Mapping[str, int] = {}
        if asked.prompt is not None:
            cached = replicas.signals.prefixes.matches(asked.prompt.blocks)
        requests = replicas.ledger.loads.get(endpoint.address, 0)
        backlog = replicas.signals.backlog.tokens.get(endpoint.address, 0.0)
        return cached.get(endpoint.address, 0), -requests, -backlog

    @thorough
    @given(states())
    def test_every_endpoint_has_its_reason(self, state: tuple[Replicas, Query]) -> None:
        replicas, asked = state
        order = replicas.order(asked)
        if asked.prompt is None:
            assert {candidate.reason for candidate in order} == {Reason.NO_PREFIX}
            return
        cached = [c.prediction.cached_tokens if c.prediction else -1.0 for c in order]
        for candidate, tokens in zip(order, cached, strict=True):
            most = Reason.CACHED if tokens == max(cached) else Reason.SPARED
            assert candidate.reason is (most if max(cached) else Reason.COLD)

    def test_is_empty_without_endpoints(self) -> None:
        assert Replicas(0).order(query("prompt")) == []
        assert Replicas(0).order(Query()) == []


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


class TestSecondCandidate:
    def test_is_the_next_on_the_ring_among_equal_endpoints(self) -> None:
        replicas = Replicas(8)
        for number in range(20):
            asked = query(f"prompt {number}")
            assert asked.key is not None
            order = [candidate.endpoint for candidate in replicas.order(asked)]
            assert order == replicas.ring_from(asked.key)
