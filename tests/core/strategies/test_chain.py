from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.signals import Signals
from extproc.core.strategies import Query, Reason, Strategy, build
from extproc.core.strategies.presets import PRESETS
from tests.core.builders import Traffic, balancing, endpoint, endpoints, thorough
from tests.core.clock import Clock, report, signals

NAMES = ("a", "b", "c")
ENDPOINTS = [endpoint(name, "sql", "law") for name in NAMES]


@pytest.fixture
def known() -> Signals:
    return signals(Clock(), *NAMES)


def chain(known: Signals, *filters: object, seed: int = 0, **other: object) -> Strategy:
    steps = [one if isinstance(one, dict) else {"filter": one} for one in filters]
    return build(balancing("Chain", chain=steps, **other), Random(seed), known)


def preset(name: str, known: Signals) -> Strategy:
    return build(balancing(name), Random(0), known)


def order(strategy: Strategy, query: Query = Query(), **loads: int) -> list[tuple[str, Reason]]:  # noqa: B008
    ranking = strategy.rank(query, Snapshot.of(ENDPOINTS), loads)
    return [(candidate.endpoint.name, candidate.reason) for candidate in ranking]


def best(strategy: Strategy, query: Query = Query(), **loads: int) -> tuple[str, Reason]:  # noqa: B008
    return order(strategy, query, **loads)[0]


def scrape(known: Signals, **metrics: tuple[float, float, float]) -> None:
    """Record scrapes of waiting and running requests and KV use, all from other sidecars."""
    for name, (waiting, running, kv_usage) in metrics.items():
        known.record_scrape(name, report(waiting, running, kv_usage), inflight=0)


def test_each_filter_gets_the_endpoints_that_the_previous_one_kept(known: Signals) -> None:
    scrape(known, a=(0, 5, 0.9), b=(0, 5, 0.5), c=(9, 5, 0.0))
    assert best(chain(known, "LeastQueue", "LeastKVCache")) == ("b", Reason.LEAST_KV_CACHE)
    assert best(chain(known, "LeastKVCache", "LeastQueue")) == ("c", Reason.LEAST_KV_CACHE)


def test_reason_is_the_filter_that_left_one_endpoint(known: Signals) -> None:
    scrape(known, a=(0, 5, 0.9), b=(5, 5, 0.3), c=(9, 5, 0.0))
    assert best(chain(known, "LeastQueue", "LeastKVCache")) == ("a", Reason.LEAST_QUEUE)


def test_own_requests_in_flight_break_ties(known: Signals) -> None:
    for name, ours in {"a": 3, "b": 1, "c": 2}.items():
        known.record_scrape(name, report(running=10), inflight=ours)
    assert best(chain(known, "LeastQueue"), a=3, b=1, c=2) == ("b", Reason.LEAST_LOAD)


class TestTiesOnTheRing:
    def test_every_sidecar_chooses_the_same(self, known: Signals) -> None:
        scrape(known, a=(0, 5, 0.5), b=(0, 5, 0.5), c=(0, 5, 0.5))
        snapshot = Snapshot.of(ENDPOINTS)
        for key in range(0, 2**64, 2**60):
            home = next(snapshot.walk(key, ""))
            for seed in range(3):
                ranking = chain(known, "LeastQueue", seed=seed)
                assert best(ranking, Query(key=key)) == (home.name, Reason.RING)

    def test_adapter_is_part_of_the_key_and_limits_the_endpoints(self, known: Signals) -> None:
        snapshot = Snapshot.of([*ENDPOINTS[:2], endpoint("c")])
        ranking = chain(known, "LeastQueue")
        for key in range(0, 2**64, 2**60):
            found = [c.endpoint.name for c in ranking.rank(Query("sql", key), snapshot, {})]
            assert sorted(found) == ["a", "b"]

    def test_requests_without_a_prefix_are_spread_at_random(self, known: Signals) -> None:
        ranking = chain(known, "LeastQueue")
        firsts = Counter(best(ranking)[0] for _ in range(300))
        assert sorted(firsts) == ["a", "b", "c"]
        assert min(firsts.values()) > 30


def test_second_candidate_is_the_choice_without_the_first(known: Signals) -> None:
    scrape(known, a=(0, 5, 0.9), b=(4, 5, 0.3), c=(9, 5, 0.0))
    found = order(chain(known, "LeastQueue", "LeastKVCache"))
    assert found == [
        ("a", Reason.LEAST_QUEUE),
        ("b", Reason.LEAST_QUEUE),
        ("c", Reason.ONLY_ONE),
    ]


def test_thresholds_are_configurable(known: Signals) -> None:
    scrape(known, a=(6, 5, 0.1), b=(5, 5, 0.9), c=(0, 5, 0.95))
    kv = "LeastKVCache"
    assert best(chain(known, {"filter": "LowLatency", "maxQueue": 5}, kv))[0] == "b"
    assert best(chain(known, {"filter": "LowLatency", "maxQueue": 6}, kv))[0] == "a"
    assert best(chain(known, {"filter": "LeastQueue", "slack": 6}, kv))[0] == "a"
    wide = {"filter": "LeastKVCache", "slack": 0.8}
    assert best(chain(known, wide, "LeastQueue"))[0] == "b"


def test_prefixes_stay_on_their_home_endpoint_among_short_queues(known: Signals) -> None:
    scrape(known, a=(0, 5, 0.5), b=(0, 5, 0.5), c=(0, 5, 0.5))
    ranking = chain(known, {"filter": "LowLatency", "maxQueue": 5}, "PrefixHash")
    home, neighbor, _ = (e.name for e in Snapshot.of(ENDPOINTS).walk(7, ""))
    assert best(ranking, Query(key=7)) == (home, Reason.PREFIX)
    scrape(known, **{home: (6.0, 5.0, 0.5)})
    assert best(ranking, Query(key=7)) == (neighbor, Reason.PREFIX)


class TestWithoutSignals:
    @pytest.mark.parametrize("name", [*PRESETS])
    def test_every_preset_chooses_by_least_load(self, name: str) -> None:
        traffic = Traffic(preset(name, Signals(Clock())), *endpoints(4))
        assert sorted(traffic.send(40).values()) == [10, 10, 10, 10]
        traffic.finish("default/pod-02", 6)
        assert traffic.send(6) == {"default/pod-02": 6}

    def test_affinity_still_applies(self, known: Signals) -> None:
        ranking = chain(known, "PrefixHash")
        assert best(ranking, Query(key=7))[0] == next(Snapshot.of(ENDPOINTS).walk(7, "")).name


class TestBetweenScrapes:
    def test_burst_is_spread_as_if_each_request_were_scraped(self, known: Signals) -> None:
        traffic = Traffic(preset("LeastQueue", known), *ENDPOINTS)
        scrape(known, a=(0, 5, 0.5), b=(3, 5, 0.5), c=(6, 5, 0.5))
        sent = traffic.send(30)
        # There are 39 waiting requests, 13 on each. The slack allows small differences.
        assert sent["a"] == pytest.approx(13, abs=2)
        assert sent["b"] == pytest.approx(10, abs=2)
        assert sent["c"] == pytest.approx(7, abs=2)

    def test_endpoint_with_an_empty_cache_is_not_overloaded(self, known: Signals) -> None:
        traffic = Traffic(preset("LeastKVCache", known), *ENDPOINTS)
        scrape(known, a=(0, 10, 0.5), b=(0, 10, 0.5), c=(0, 0, 0.0))
        # Each request counts as 1/20 of a cache. After ten requests all endpoints are equal.
        assert traffic.send(10) == {"c": 10}
        assert sorted(traffic.send(12).values()) == [4, 4, 4]


class TestAdapters:
    @pytest.fixture
    def slots(self, known: Signals) -> Signals:
        for name in NAMES:
            known.record_scrape(name, report(running=1, max_loras=2), inflight=0)
        return known

    def test_requests_stay_together_from_the_first_one(self, slots: Signals) -> None:
        ranking = preset("LoraQueue", slots)
        first = send_one(ranking, slots, "sql", 0)
        assert {send_one(ranking, slots, "sql", key) for key in range(20)} == {first}

    def test_another_adapter_goes_to_a_free_slot(self, slots: Signals) -> None:
        ranking = preset("LoraQueue", slots)
        for name in NAMES[:2]:
            slots.residency.observed(name, frozenset({"x", "y"}), 2)
        assert send_one(ranking, slots, "sql", 7) == "c"

    def test_stay_although_another_endpoint_has_a_shorter_queue(self, slots: Signals) -> None:
        busy = report(waiting=40, running=9, max_loras=2, adapters=frozenset({"sql"}))
        slots.record_scrape("b", busy, inflight=0)
        assert best(preset("LoraQueue", slots), Query("sql")) == ("b", Reason.LORA_LOADED)
        assert best(preset("LowLatency", slots), Query("sql")) == ("b", Reason.LORA_LOADED)

    def test_move_if_the_queue_is_too_long(self, slots: Signals) -> None:
        busy = report(waiting=51, running=9, max_loras=2, adapters=frozenset({"sql"}))
        slots.record_scrape("b", busy, inflight=0)
        for strategy in ("LoraQueue", "LoraKVCache", "LowLatency"):
            assert best(preset(strategy, slots), Query("sql"))[0] in "ac"

    def test_leave_an_engine_that_hangs(self, slots: Signals) -> None:
        traffic = Traffic(preset("LoraQueue", slots), *ENDPOINTS)
        home = next(iter(traffic.send(1, Query("sql"))))
        # Its metrics still report no running request, and no request that is sent there ends.
        sent = traffic.send(99, Query("sql"))
        assert sent[home] <= 51


def send_one(ranking: Strategy, signals: Signals, adapter: str, key: int) -> str:
    """Send a request and return the name of its endpoint."""
    query = Query(adapter, key)
    candidate = next(ranking.rank(query, Snapshot.of(ENDPOINTS), {}))
    Fleet(signals=signals).store(candidate.endpoint.address, ranking.describe(query, candidate))
    return candidate.endpoint.name


@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("LeastQueue", ["LeastQueue"]),
        ("LeastKVCache", ["LeastKVCache"]),
        ("QueueKVCache", ["LeastQueue", "LeastKVCache"]),
        ("LoraQueue", ["LoraAffinity", "LeastQueue"]),
        ("LoraKVCache", ["LoraAffinity", "LeastKVCache"]),
        ("LowLatency", ["LowLatency", "LoraAffinity", "LeastQueue", "LeastKVCache"]),
    ],
)
def test_presets_are_the_chains_of_the_published_benchmarks(name: str, filters: list[str]) -> None:
    assert [one.filter for one in PRESETS[name]] == filters  # type: ignore[index]


@thorough
@given(
    st.sampled_from([*PRESETS]),
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.floats(0, 1), st.integers(0, 9)),
        max_size=8,
    ),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_every_eligible_endpoint_is_yielded_once(
    name: str, figures: list[tuple[int, int, float, int]], key: int | None
) -> None:
    fleet = endpoints(len(figures))
    known = signals(Clock(), *(e.address for e in fleet))
    loads = {}
    for e, (waiting, running, kv_usage, ours) in zip(fleet, figures, strict=True):
        known.record_scrape(e.address, report(waiting, running, kv_usage), inflight=0)
        loads[e.address] = ours
    candidates = list(preset(name, known).rank(Query(key=key), Snapshot.of(fleet), loads))
    assert sorted(c.endpoint.name for c in candidates) == [e.name for e in fleet]
    assert [c.hops for c in candidates] == list(range(len(fleet)))
