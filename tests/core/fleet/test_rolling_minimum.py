from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.rolling_minimum import RollingMinimum

STEPS = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 100)), min_size=1)


class TestRollingMinimum:
    def test_is_the_first_value_at_first(self) -> None:
        assert RollingMinimum().add(7, now=1000.0) == 7

    def test_keeps_a_value_for_half_a_minute(self) -> None:
        lowest = RollingMinimum()
        lowest.add(3, now=0.0)
        assert lowest.add(9, now=29.0) == 3
        assert lowest.add(8, now=31.0) == 3

    def test_forgets_a_value_after_a_minute(self) -> None:
        lowest = RollingMinimum()
        lowest.add(3, now=0.0)
        lowest.add(9, now=31.0)
        assert lowest.add(8, now=62.0) == 8

    def test_keeps_a_value_for_other_seconds_if_asked(self) -> None:
        lowest = RollingMinimum(seconds=300)
        lowest.add(3, now=0.0)
        assert lowest.add(9, now=310.0) == 3
        assert lowest.add(9, now=620.0) == 9

    def test_forgets_a_value_that_is_older_than_a_minute(self) -> None:
        lowest = RollingMinimum()
        lowest.add(3, now=0.0)
        assert lowest.add(9, now=61.0) == 9

    @given(STEPS)
    def test_is_between_the_minima_of_half_a_minute_and_of_all_time(
        self, steps: list[tuple[float, int]]
    ) -> None:
        lowest, now = RollingMinimum(), 0.0
        seen: list[tuple[float, int]] = []
        for seconds, value in steps:
            now += seconds
            seen.append((now, value))
            found = lowest.add(value, now)
            assert min(v for _, v in seen) <= found <= min(v for at, v in seen if now - at < 30)
