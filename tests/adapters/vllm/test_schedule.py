from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.vllm import schedule
from extproc.adapters.vllm.schedule import (
    FIRST_READINGS,
    FirstReadings,
    Pacer,
    PathReader,
    Plan,
    ReadingTimes,
    plans,
)
from extproc.core.schema import ModelSpec
from tests.adapters.vllm.servers import model
from tests.core.builders import brief, catalog


def spec(*addresses: str, **more: object) -> ModelSpec:
    return ModelSpec.model_validate(model(*addresses, **more))  # type: ignore[arg-type]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the real times, because these tests never wait."""
    monkeypatch.setattr(schedule, "LONGEST_BACKOFF", 10.0)


class Middle(Random):
    """A random generator that always returns the middle."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class TestPlans:
    def test_exist_for_endpoints_of_models_that_need_readings(self) -> None:
        found = plans(
            catalog(
                spec("10.0.0.1:8000", name="a", busy=0.1, idle=2.0),
                spec("10.0.0.2:8000", name="b", strategy="PrefixHash"),
                spec("10.0.0.3:8000", name="c", strategy="PrefixHash", discoverAdapters=True),
                spec("10.0.0.4:8000", name="d", discoverAdapters=False),
            )
        )
        assert found == {
            "10.0.0.1:8000": Plan(0.1, 2.0, metrics=True, adapters=True),
            "10.0.0.3:8000": Plan(0.05, 0.05, metrics=False, adapters=True),
            "10.0.0.4:8000": Plan(0.05, 0.05, metrics=True, adapters=False),
        }

    def test_of_two_models_are_joined_for_a_shared_endpoint(self) -> None:
        found = plans(
            catalog(
                spec("10.0.0.1:8000", name="a", busy=0.1, idle=3.0, discoverAdapters=False),
                spec("10.0.0.1:8000", name="b", strategy="PrefixHash", discoverAdapters=True),
                spec("10.0.0.1:8000", name="c", strategy="PrefixHash", busy=0.06, idle=0.06),
            )
        )
        assert found == {"10.0.0.1:8000": Plan(0.05, 0.05, metrics=True, adapters=True)}


class TestReadingTimes:
    def test_interval_is_steady_while_readings_succeed(self) -> None:
        times = ReadingTimes(5.0, Middle())
        assert times.due == 5.0
        times.started = 6.0
        times.succeeded(0.5)
        assert times.due == 6.5

    def test_interval_grows_with_failures_and_recovers_at_once(self) -> None:
        times = ReadingTimes(0.0, Middle())
        waits = []
        for _ in range(50):
            times.failed(100.0, 0.2)
            waits.append(round(times.due - 100, 6))
        assert waits[:7] == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
        assert waits[-1] == 10.0
        times.started = 100.0
        times.succeeded(0.2)
        assert times.due == 100.2
        times.failed(200.0, 0.2)
        assert times.due == 200.4

    def test_long_interval_does_not_shrink_after_a_failure(self) -> None:
        times = ReadingTimes(0.0, Middle())
        times.failed(100.0, 60.0)
        assert times.due == 160.0

    def test_hurry_shortens_the_wait(self) -> None:
        times = ReadingTimes(0.0, Middle())
        times.started = 10.0
        times.succeeded(1.0)
        assert times.hurry(0.2)
        assert times.due == 10.2
        assert not times.hurry(0.2)

    def test_hurry_has_no_effect_after_failures(self) -> None:
        times = ReadingTimes(0.0, Middle())
        times.failed(10.0, 1.0)
        assert not times.hurry(0.2)
        assert times.due == 12.0

    def test_postpone_never_makes_a_reading_earlier(self) -> None:
        times = ReadingTimes(5.0, Middle())
        times.postpone(4.0)
        assert times.due == 5.0
        times.postpone(9.0)
        assert times.due == 9.0

    @brief
    @given(st.integers())
    def test_interval_varies_by_a_tenth(self, seed: int) -> None:
        times = ReadingTimes(0.0, Random(seed))
        times.succeeded(1.0)
        assert 0.9 <= times.due <= 1.1
        times.failed(0.0, 1.0)
        assert 1.8 <= times.due <= 2.2


class TestFirstReadings:
    PLAN = Plan(0.2, 1.0, metrics=True, adapters=False)

    @pytest.fixture
    def pacer(self) -> Pacer:
        return Pacer(per_second=10, together=3)

    def test_follow_each_other_sooner_until_the_times_are_known(self, pacer: Pacer) -> None:
        first = FirstReadings(pacer)
        assert first.interval(self.PLAN, 100.0, are_times_known=False) == 0.05
        assert first.interval(self.PLAN, 100.0, are_times_known=True) == 0.2

    def test_are_limited_for_each_engine_if_its_times_stay_unknown(self, pacer: Pacer) -> None:
        first = FirstReadings(pacer)

        def intervals(number: int, *, known: bool = False) -> list[float]:
            read = first.after_reading
            return [read(self.PLAN, 100.0, are_times_known=known) for _ in range(number)]

        assert intervals(FIRST_READINGS + 2) == [0.05] * FIRST_READINGS + [0.2] * 2
        assert intervals(2, known=True) == [0.2] * 2
        assert intervals(FIRST_READINGS + 2) == [0.05] * FIRST_READINGS + [0.2] * 2

    def test_are_not_sooner_while_readings_wait_for_the_pacer(self, pacer: Pacer) -> None:
        first = FirstReadings(pacer)
        for _ in range(5):
            pacer.reserve(100.0)
        for _ in range(2 * FIRST_READINGS):
            assert first.after_reading(self.PLAN, 100.0, are_times_known=False) == 0.2
        assert first.interval(self.PLAN, 200.0, are_times_known=False) == 0.05


class TestPathReader:
    def test_postpones_a_due_reading_until_the_pacer_allows_it(self) -> None:
        pacer = Pacer(per_second=10, together=1)
        reader = PathReader("/metrics", pacer, pacer, 5.0, Middle())
        reader.was_read = True
        assert not reader.is_due(4.0)
        pacer.reserve(5.0)
        assert not reader.is_due(5.0)
        assert reader.times.due == pytest.approx(5.1)
        assert not reader.hurry(0.01)
        assert reader.is_due(5.1)
        reader.times.succeeded(1.0)
        assert reader.hurry(0.01)

    def test_has_another_pacer_after_failures(self) -> None:
        pacer, retries = (Pacer(per_second=one, together=1) for one in (10, 1))
        reader = PathReader("/metrics", pacer, retries, 0.0, Middle())
        reader.was_read = True
        for _ in range(2):
            reader.times.failed(0.0, 0.1)
        retries.reserve(5.0)
        assert not reader.is_due(5.0)
        assert reader.times.due == pytest.approx(6.0)

    def test_does_not_wait_before_the_first_reading(self) -> None:
        pacer = Pacer(per_second=10, together=1)
        pacer.reserve(5.0)
        assert PathReader("/metrics", pacer, pacer, 5.0, Middle()).is_due(5.0)


class TestPacer:
    def test_allows_a_burst_then_a_steady_rate(self) -> None:
        pacer = Pacer(per_second=10, together=3)
        assert [pacer.reserve(100.0) for _ in range(3)] == pytest.approx([0, 0, 0])
        assert [pacer.reserve(100.0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])

    def test_allows_another_burst_after_a_pause(self) -> None:
        pacer = Pacer(per_second=10, together=3)
        for _ in range(9):
            pacer.reserve(100.0)
        assert pacer.reserve(100.0) == pytest.approx(0.7)
        assert [pacer.reserve(200.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])

    def test_keeps_up_until_readings_wait(self) -> None:
        pacer = Pacer(per_second=10, together=3)
        assert all(pacer.keeps_up(100.0) and not pacer.reserve(100.0) for _ in range(3))
        assert pacer.keeps_up(100.0)
        assert pacer.reserve(100.0)
        assert not pacer.keeps_up(100.0)
        assert pacer.keeps_up(100.1)

    def test_charge_counts_as_several_readings(self) -> None:
        pacer = Pacer(per_second=10, together=1)
        pacer.reserve(100.0)
        pacer.charge(5)
        assert pacer.reserve(100.0) == pytest.approx(0.6)

    @brief
    @given(st.lists(st.floats(0, 0.1), min_size=1, max_size=200))
    def test_never_exceeds_the_rate(self, gaps: list[float]) -> None:
        pacer, now, times = Pacer(per_second=50, together=5), 1000.0, []
        for gap in gaps:
            now += gap
            times.append(now + pacer.reserve(now))
        assert times == sorted(times)
        for position, first in enumerate(times):
            within = [time for time in times[position:] if time < first + 1 - 1e-6]
            assert len(within) <= 50 + 5
