"""The load that other sidecars cause."""

from __future__ import annotations

from math import e, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.cache_sizes import DEFAULT_TOKENS
from extproc.core.fleet.pressure import ObservedLoad, Pressure
from extproc.core.fleet.totals import Totals
from extproc.core.fleet.weights import WEIGHTS

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
QUIET = ObservedLoad(waiting=0, running=0, kv_usage=0, ours=0, others_in_prefill=0)


def record(pressure: Pressure, load: ObservedLoad, address: str = A, now: float = 0.0) -> None:
    pressure.record(address, load, mean_prompt=1000, now=now)


def record_all(pressure: Pressure, load: ObservedLoad, samples: int, start: float = 0.0) -> None:
    """Record as many equal samples, five a second."""
    for number in range(samples):
        record(pressure, load, now=start + 0.2 * number)


class Scene:
    """Samples of endpoints, without own requests."""

    def __init__(self) -> None:
        self.totals = Totals()
        self.now = 0.0
        self.pressure = Pressure(lambda: self.now, WEIGHTS, self.totals)

    def on(self, address: str) -> tuple[float, float]:
        """Return the requests and tokens on an endpoint."""
        return self.totals.of(address).requests, self.totals.of(address).backlog


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def pressure(scene: Scene) -> Pressure:
    return scene.pressure


class TestRequests:
    def test_are_those_of_others(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=5, ours=3))
        assert scene.totals.of(A).requests == 2

    def test_are_the_mean_of_the_recent_samples(self, scene: Scene, pressure: Pressure) -> None:
        # Otherwise all sidecars go where the latest sample shows the fewest.
        record_all(pressure, QUIET._replace(running=10), 1)
        record_all(pressure, QUIET._replace(running=60), 1, start=0.2)
        assert scene.totals.of(A).requests == pytest.approx(11, abs=0.1)
        record_all(pressure, QUIET._replace(running=60), 300, start=0.4)
        assert scene.totals.of(A).requests == pytest.approx(60, abs=0.5)

    def test_follow_rare_samples_faster(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=10), now=0)
        record(pressure, QUIET._replace(running=60), now=10)
        assert scene.totals.of(A).requests == pytest.approx(60 - 50 / e)

    def test_that_become_known_are_not_others(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=10), now=0)
        record(pressure, QUIET._replace(running=12, ours=1), now=10)
        pressure.recognize(A, sent_at=9)
        record(pressure, QUIET._replace(running=12, ours=2), now=10)
        assert scene.totals.of(A).requests == pytest.approx(10)

    def test_that_become_known_long_after_they_were_sent_are_not_in_the_mean(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        record_all(pressure, QUIET._replace(running=50), 200)
        for _ in range(50):
            pressure.recognize(A, sent_at=-100)
        assert scene.totals.of(A).requests == 0

    def test_are_none_soon_after_the_last_one(self, scene: Scene, pressure: Pressure) -> None:
        record_all(pressure, QUIET._replace(running=5), 1)
        record_all(pressure, QUIET, 200, start=0.2)
        assert scene.totals.of(A).is_idle

    def test_of_an_old_sample_are_not_there_any_more(self, scene: Scene) -> None:
        record(scene.pressure, QUIET._replace(running=5, ours=3))
        scene.now = 9.0
        assert scene.pressure.others(A) == 2
        scene.now = 11.0
        assert scene.pressure.others(A) == 0

    def test_that_wait_count_more_for_any_sender(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=5, waiting=2, ours=7))
        assert scene.totals.of(A).requests == 2 * WEIGHTS.waiting

    def test_that_wait_count_up_to_the_batch_size(self, scene: Scene, pressure: Pressure) -> None:
        # Routing cannot resolve an overload, and cache hits matter more then.
        record(pressure, QUIET._replace(running=5, waiting=500, ours=505))
        assert scene.totals.of(A).requests == 5 * WEIGHTS.waiting

    def test_are_never_negative(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=5, ours=9))
        assert scene.totals.of(A).requests == 0


class TestTokens:
    def test_are_others_prompts_of_mean_length(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(running=5, others_in_prefill=3))
        assert scene.totals.of(A).backlog == 3000 * WEIGHTS.others

    @pytest.mark.parametrize(("kv_usage", "share"), [(0.0, 0), (0.7, 0), (0.85, 0.5), (1.0, 1)])
    def test_grow_with_cache_usage(
        self, scene: Scene, pressure: Pressure, kv_usage: float, share: float
    ) -> None:
        record(pressure, QUIET._replace(kv_usage=kv_usage, cache_tokens=400_000))
        assert scene.totals.of(A).backlog == pytest.approx(share * WEIGHTS.full * 400_000)

    def test_are_those_of_a_full_cache_if_the_queue_is_blocked(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        record(pressure, QUIET._replace(kv_usage=0.5, is_blocked=True))
        assert scene.totals.of(A).backlog == WEIGHTS.full * DEFAULT_TOKENS

    def test_are_half_of_those_before_a_place_in_a_full_batch(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        record(pressure, QUIET._replace(kv_usage=0.5, before_place=7_000))
        assert scene.totals.of(A).backlog == 3_500

    def test_are_the_longer_wait_of_a_full_cache_and_a_full_batch(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        full = QUIET._replace(kv_usage=1.0, cache_tokens=100_000)
        record(pressure, full._replace(before_place=2_000))
        assert scene.totals.of(A).backlog == WEIGHTS.full * 100_000
        record(pressure, full._replace(before_place=200_000))
        assert scene.totals.of(A).backlog == 100_000


class TestRoom:
    @pytest.mark.parametrize(("kv_usage", "room"), [(0.0, 90_000), (0.5, 40_000), (1.0, -10_000)])
    def test_is_what_is_free_of_nine_tenths(
        self, scene: Scene, pressure: Pressure, kv_usage: float, room: float
    ) -> None:
        record(pressure, QUIET._replace(kv_usage=kv_usage, cache_tokens=100_000))
        assert scene.totals.of(A).room == pytest.approx(room)

    @pytest.mark.parametrize("kv_usage", [0.0, 0.9, 1.0])
    def test_is_unlimited_in_a_cache_of_unknown_size(
        self, scene: Scene, pressure: Pressure, kv_usage: float
    ) -> None:
        record(pressure, QUIET._replace(kv_usage=kv_usage))
        assert scene.totals.of(A).room == inf


class TestShareOfOthers:
    def test_is_zero_without_samples(self, pressure: Pressure) -> None:
        assert pressure.share_of_others == 0

    def test_is_zero_without_requests(self, pressure: Pressure) -> None:
        record(pressure, QUIET)
        assert pressure.share_of_others == 0

    def test_covers_all_endpoints(self, pressure: Pressure) -> None:
        for _ in range(200):
            record(pressure, QUIET._replace(running=6, waiting=2, ours=4), A)
            record(pressure, QUIET._replace(running=2, ours=0), B)
        assert pressure.share_of_others == pytest.approx(0.6, abs=0.01)

    @pytest.mark.parametrize(("ours", "share"), [(96, 0), (94, 0.06)])
    def test_ignores_few_requests(self, pressure: Pressure, ours: int, share: float) -> None:
        for _ in range(500):
            record(pressure, QUIET._replace(running=100, ours=ours))
        assert pressure.share_of_others == pytest.approx(share)

    def test_follows_recent_samples(self, pressure: Pressure) -> None:
        for ours in (0, 4):
            for _ in range(500):
                record(pressure, QUIET._replace(running=4, ours=ours))
        assert pressure.share_of_others < 0.01

    def test_does_not_include_requests_that_become_known(self, pressure: Pressure) -> None:
        record_all(pressure, QUIET._replace(running=10), 1)
        for _ in range(10):
            pressure.recognize(A, sent_at=-1)
        assert pressure.share_of_others == 0

    @given(st.lists(st.tuples(*(st.floats(0, 1e6) for _ in range(3))), min_size=1))
    def test_is_between_zero_and_one(self, said: list[tuple[float, float, float]]) -> None:
        pressure = Scene().pressure
        for waiting, running, ours in said:
            record(pressure, QUIET._replace(waiting=waiting, running=running, ours=ours))
        assert 0 <= pressure.share_of_others <= 1 + 1e-9


class TestKvUsage:
    def test_is_that_of_the_first_sample_at_first(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(kv_usage=0.6))
        assert scene.totals.of(A).kv_usage == 0.6

    def test_follows_recent_samples_and_no_single_one(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        record_all(pressure, QUIET._replace(kv_usage=0.2), 1)
        record_all(pressure, QUIET._replace(kv_usage=1), 1, start=0.2)
        assert scene.totals.of(A).kv_usage == pytest.approx(0.216, abs=0.001)
        record_all(pressure, QUIET._replace(kv_usage=0.6), 300, start=0.4)
        assert scene.totals.of(A).kv_usage == pytest.approx(0.6, abs=0.001)

    def test_is_unknown_after_an_endpoint_left(self, scene: Scene, pressure: Pressure) -> None:
        record(pressure, QUIET._replace(kv_usage=0.6))
        pressure.forget(A)
        assert scene.totals.of(A).kv_usage == 0


class TestExpiry:
    def test_forgets_old_samples(self, scene: Scene, pressure: Pressure) -> None:
        load = QUIET._replace(running=5, kv_usage=1, cache_tokens=100_000)
        record(pressure, load, A, now=0)
        record(pressure, load, B, now=9)
        pressure.expire(oldest=7)
        assert scene.on(A) == (0, 0)
        assert scene.totals.of(A).room == inf
        assert scene.on(B) == (5, WEIGHTS.full * 100_000)
        assert scene.totals.of(B).room < 0

    def test_forgets_the_samples_of_an_endpoint_that_left(
        self, scene: Scene, pressure: Pressure
    ) -> None:
        record(pressure, QUIET._replace(running=5, kv_usage=1))
        pressure.forget(A)
        assert scene.on(A) == (0, 0)
