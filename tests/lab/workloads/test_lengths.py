"""Lengths: drawn within limits, and fitted exactly to totals."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.workloads.lengths import fit, geometric, log_normal, log_uniform, shares


def total(lengths: list[int], counts: list[int]) -> int:
    return sum(length * count for length, count in zip(lengths, counts, strict=True))


class TestDrawing:
    def test_the_seed_determines_the_lengths(self) -> None:
        first, second = Random(3), Random(3)
        drawn = [log_normal(first, 100, 1.0) for _ in range(9)]
        assert drawn == [log_normal(second, 100, 1.0) for _ in range(9)]

    def test_log_normal_lengths_have_the_given_mean(self) -> None:
        rng = Random(1)
        drawn = [log_normal(rng, 200, 0.8) for _ in range(20_000)]
        assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.03)

    def test_log_normal_lengths_stay_within_their_bounds(self) -> None:
        rng = Random(1)
        drawn = [log_normal(rng, 200, 2.0, least=50, most=300) for _ in range(1_000)]
        assert (min(drawn), max(drawn)) == (50, 300)

    def test_half_of_log_uniform_lengths_are_below_the_geometric_mean(self) -> None:
        rng = Random(1)
        drawn = [log_uniform(rng, 100, 10_000) for _ in range(4_000)]
        assert min(drawn) >= 100
        assert max(drawn) <= 10_000
        assert sum(length < 1_000 for length in drawn) == pytest.approx(2_000, abs=150)

    def test_geometric_numbers_start_at_zero_and_have_the_given_mean(self) -> None:
        rng = Random(1)
        drawn = [geometric(rng, 2.4, most=30) for _ in range(20_000)]
        assert (min(drawn), max(drawn) <= 30) == (0, True)
        assert sum(drawn) / len(drawn) == pytest.approx(2.4, rel=0.03)

    @given(seed=st.integers(), parts=st.integers(1, 40), more=st.integers(0, 5_000))
    def test_shares_add_up_and_none_is_empty(self, seed: int, parts: int, more: int) -> None:
        drawn = shares(Random(seed), parts + more, [1.0] * parts, 1.0)
        assert (len(drawn), sum(drawn)) == (parts, parts + more)
        assert min(drawn) >= 1


class TestFitting:
    @given(
        lengths=st.lists(st.integers(20, 2_000), min_size=30, max_size=60),
        q=st.integers(1, 12),
        once_more=st.integers(5, 25),
        by=st.floats(0.7, 1.5),
        off=st.integers(-50, 50),
    )
    def test_totals_are_exact_with_counts_that_differ_by_one(
        self, lengths: list[int], q: int, once_more: int, by: float, off: int
    ) -> None:
        counts = [q + 1] * once_more + [q] * (len(lengths) - once_more)
        wanted = round(by * total(lengths, counts)) + off
        fitted = fit(lengths, counts, wanted, least=4)
        assert total(fitted, counts) == wanted
        assert min(fitted) >= 4

    @given(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=50),
        share=st.floats(0, 1),
    )
    def test_every_total_is_found_if_all_count_once(self, lengths: list[int], share: float) -> None:
        wanted = round(len(lengths) * (3 + share * 37))
        fitted = fit(lengths, [1] * len(lengths), wanted, least=3, most=40)
        assert sum(fitted) == wanted
        assert (min(fitted) >= 3, max(fitted) <= 40) == (True, True)

    @given(lengths=st.lists(st.integers(1, 500), min_size=12, max_size=40), by=st.floats(0.8, 2))
    def test_the_order_stays_except_for_a_token_or_two(self, lengths: list[int], by: float) -> None:
        wanted = len(lengths) + round(by * sum(lengths))
        fitted = fit(lengths, [1] * len(lengths), wanted)
        in_order = [length for _, length in sorted(zip(lengths, fitted, strict=True))]
        assert all(b >= a - 2 for a, b in pairwise(in_order))

    def test_fitting_lengths_do_not_change(self) -> None:
        assert fit([5, 9, 30], [2, 1, 3], 109) == [5, 9, 30]

    def test_exchanges_tokens_between_lengths(self) -> None:
        counts = [3, 3, 4, 4]
        fitted = fit([10, 10, 10, 10], counts, 141)
        assert total(fitted, counts) == 141
        assert sorted(fitted) == [9, 10, 10, 11]

    @pytest.mark.parametrize(("wanted", "most"), [(7, None), (41, 10)])
    def test_an_unreachable_total_is_refused(self, wanted: int, most: int | None) -> None:
        with pytest.raises(ValueError, match=f"cannot make {wanted}"):
            fit([5, 5], [2, 2], wanted, least=2, most=most)

    def test_a_total_that_the_counts_cannot_give_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1 are left"):
            fit([5, 5], [2, 2], 21)
