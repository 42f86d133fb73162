from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.computed_prompts import ComputedPrompts
from extproc.core.fleet.report import Load, Report
from tests.core.builders import brief

EMPTY = Report(Load(0, 0), 0)


def report(prompts: float, tokens: float, cached: float = 0) -> Report:
    return EMPTY._replace(first_tokens=prompts, prompt_tokens=tokens + cached, cached_tokens=cached)


class TestMean:
    def test_is_unknown_without_two_readings_that_have_the_counters(self) -> None:
        computed = ComputedPrompts()
        for before, now in (
            (None, report(1, 10)),
            (EMPTY, report(1, 10)),
            (report(1, 10), EMPTY),
            (report(1, 10), report(1, 10)),
        ):
            computed.read(before, now)
            assert computed.mean is None

    def test_counts_the_tokens_that_were_not_cached(self) -> None:
        computed = ComputedPrompts()
        computed.read(report(5, 1000, cached=500), report(7, 1200, cached=9000))
        assert computed.mean == 100

    def test_includes_a_prompt_that_took_several_readings(self) -> None:
        computed = ComputedPrompts()
        for step in range(4):
            computed.read(report(0, 1000 * step), report(step == 3, 1000 * (step + 1)))
        assert computed.mean == pytest.approx(4000, rel=0.01)

    def test_ignores_a_restart(self) -> None:
        computed = ComputedPrompts()
        computed.read(report(5, 1000), report(6, 1100))
        computed.read(report(6, 1100), report(0, 0))
        assert computed.mean == 100

    @brief
    @given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**6)), min_size=1))
    def test_is_between_the_least_and_the_largest(self, steps: list[tuple[int, int]]) -> None:
        computed = ComputedPrompts()
        for prompts, tokens in steps:
            computed.read(report(0, 0), report(prompts, tokens))
        each = [tokens / prompts for prompts, tokens in steps]
        assert computed.mean is not None
        assert min(each) * 0.999 <= computed.mean <= max(each) * 1.001

    def test_follows_a_change(self) -> None:
        computed = ComputedPrompts()
        for tokens in [1000] * 100 + [10] * 5000:
            computed.read(report(0, 0), report(1, tokens))
        assert computed.mean is not None
        assert computed.mean < 11
