"""Decisions of each published rule at its own thresholds."""

from __future__ import annotations

from random import Random

import pytest

from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec
from extproc.core.strategies import Strategy
from extproc.lab import published_rules
from extproc.lab.published_rules.aibrix import AIBrix
from extproc.lab.published_rules.cache_aware import CacheAware
from extproc.lab.published_rules.lmetric import LMetric
from extproc.lab.published_rules.rule import Rule, Seen
from extproc.lab.published_rules.sticky import Sticky
from tests.lab.published_rules.builders import made

PROMPT = 1_000.0


def seen(requests: int = 0, backlog: float = 0.0, cached: float = 0.0, tree: int = 0) -> Seen:
    return Seen(requests, backlog, cached, tree)


def best(rule: Rule, *endpoints: Seen) -> set[int]:
    """Return the positions among which the choice is random."""
    costs = rule.costs(PROMPT, endpoints)
    return {place for place, cost in enumerate(costs) if cost == min(costs)}


class TestCacheAware:
    RULE = made(CacheAware)

    def test_a_match_above_three_tenths_counts(self) -> None:
        assert best(self.RULE, seen(cached=301, tree=9), seen(tree=1)) == {0}

    def test_a_match_below_goes_to_the_smallest_tree(self) -> None:
        assert best(self.RULE, seen(cached=300, tree=9), seen(tree=1)) == {1}

    def test_the_longest_match_wins_despite_its_load(self) -> None:
        assert best(self.RULE, seen(64, cached=900), seen(0, cached=899)) == {0}

    def test_if_unbalanced_the_least_loaded_wins(self) -> None:
        assert best(self.RULE, seen(65, cached=900), seen(0)) == {1}

    def test_imbalance_needs_a_large_ratio_too(self) -> None:
        assert best(self.RULE, seen(195, cached=900), seen(130)) == {0}
        assert best(self.RULE, seen(196, cached=900), seen(130)) == {1}

    def test_equal_trees_tie(self) -> None:
        assert best(self.RULE, seen(5, tree=7), seen(tree=7), seen(tree=8)) == {0, 1}


class TestAIBrix:
    RULE = made(AIBrix)

    def test_the_longest_match_wins(self) -> None:
        assert best(self.RULE, seen(3, cached=10), seen(3, cached=20), seen(3)) == {1}

    def test_fewer_requests_break_a_tie_of_matches(self) -> None:
        assert best(self.RULE, seen(3, cached=20), seen(2, cached=20), seen(2)) == {1}

    def test_a_match_does_not_count_above_mean_plus_deviation(self) -> None:
        # 0, 0, 0, 8: the mean is 2, the deviation 3.5.
        assert best(self.RULE, seen(8, cached=900), seen(), seen(), seen(cached=1)) == {3}

    def test_without_a_match_the_fewest_requests_win(self) -> None:
        assert best(self.RULE, seen(2), seen(1), seen(1)) == {1, 2}

    def test_a_difference_of_more_than_eight_requests_is_an_imbalance(self) -> None:
        even = [seen(9, cached=900), *[seen(9)] * 4]
        assert best(self.RULE, *even, seen(1)) == {0}
        assert best(self.RULE, *even, seen(0)) == {5}


class TestLMetric:
    RULE = made(LMetric)

    def test_cost_is_the_product_of_tokens_and_requests(self) -> None:
        # 2 x (500 + 100), 3 x 400, 1 x 1,201.
        assert best(self.RULE, seen(1, 500, 900), seen(2, 0, 600), seen(0, 201, 0)) == {0, 1}

    def test_a_fully_cached_prompt_costs_nothing(self) -> None:
        assert best(self.RULE, seen(50, cached=1_010), seen(0, cached=999)) == {0}


class TestSticky:
    RULE = made(Sticky, peak=100.0)

    def test_stays_with_a_warm_endpoint(self) -> None:
        assert best(self.RULE, seen(backlog=1_800, cached=800), seen()) == {0}

    def test_four_fifths_of_a_prompt_are_warm(self) -> None:
        assert best(self.RULE, seen(backlog=900, cached=799), seen()) == {1}

    def test_leaves_an_endpoint_with_18_seconds_more_to_compute(self) -> None:
        assert best(self.RULE, seen(backlog=1_801, cached=800), seen()) == {1}

    def test_compares_the_best_warm_and_the_best_cold_endpoint(self) -> None:
        warm = (seen(backlog=9_000, cached=900), seen(backlog=2_000, cached=850))
        assert best(self.RULE, *warm, seen(backlog=200)) == {1}

    def test_chooses_the_least_work_among_the_eligible(self) -> None:
        assert best(self.RULE, seen(backlog=100, cached=850), seen(cached=800)) == {1}
        assert best(self.RULE, seen(backlog=300), seen(cached=600), seen(cached=500)) == {1}

    def test_chooses_the_least_work_if_all_are_warm(self) -> None:
        assert best(self.RULE, seen(backlog=50, cached=900), seen(cached=900)) == {1}


def build(name: str) -> Strategy:
    signals = Signals(lambda: 0.0)
    return published_rules.build(name, LoadBalancingSpec(), rng=Random(0), signals=signals)


class TestBuild:
    @pytest.mark.parametrize("name", published_rules.names())
    def test_returns_the_named_rule(self, name: str) -> None:
        rule = build(name)
        assert type(rule).__name__ == name
        assert rule.reads_prompts
        assert rule.reads_signals

    def test_refuses_unknown_names(self) -> None:
        with pytest.raises(
            ValueError, match=r"unknown rule 'Best': known rules are CacheAware, AIBrix, LM"
        ):
            build("Best")
