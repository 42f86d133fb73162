from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.lowest import Lowest

STEPS = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 100)), min_size=1)


class TestTheLowest:
    def test_is_the_first_where_there_is_no_other(self) -> None:
        assert Lowest().with_(7, now=1000.0) == 7

    def test_is_remembered_for_half_a_minute(self) -> None:
        lowest = Lowest()
        lowest.with_(3, now=0.0)
        assert lowest.with_(9, now=29.0) == 3
        assert lowest.with_(8, now=31.0) == 3

    def test_is_forgotten_after_a_minute(self) -> None:
        lowest = Lowest()
        lowest.with_(3, now=0.0)
        lowest.with_(9, now=31.0)
        assert lowest.with_(8, now=62.0) == 8

    @given(STEPS)
    def test_lies_between_those_of_half_a_minute_and_of_all_time(
        self, steps: list[tuple[float, int]]
    ) -> None:
        lowest, now = Lowest(), 0.0
        seen: list[tuple[float, int]] = []
        for seconds, value in steps:
            now += seconds
            seen.append((now, value))
            found = lowest.with_(value, now)
            assert min(v for _, v in seen) <= found <= min(v for at, v in seen if now - at < 30)
