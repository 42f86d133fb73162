"""What each published rule decides, at its own thresholds."""

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
    """The places among which chance decides."""
    costs = rule.costs(PROMPT, endpoints)
    return {place for place, cost in enumerate(costs) if cost == min(costs)}


class TestCacheAware:
    RULE = made(CacheAware)

    def test_a_match_above_three_tenths_counts(self) -> None:
        assert best(self.RULE, seen(cached=301, tree=9), seen(tree=1)) == {0}

    def test_one_below_does_not_and_the_smallest_tree_has_it(self) -> None:
        assert best(self.RULE, seen(cached=300, tree=9), seen(tree=1)) == {1}

    def test_the_longest_match_counts_however_loaded_it_is(self) -> None:
        assert best(self.RULE, seen(64, cached=900), seen(0, cached=899)) == {0}

    def test_out_of_balance_the_least_loaded_has_it(self) -> None:
        assert best(self.RULE, seen(65, cached=900), seen(0)) == {1}

    def test_out_of_balance_is_also_a_matter_of_proportion(self) -> None:
        assert best(self.RULE, seen(195, cached=900), seen(130)) == {0}
        assert best(self.RULE, seen(196, cached=900), seen(130)) == {1}

    def test_equal_trees_are_alike(self) -> None:
        assert best(self.RULE, seen(5, tree=7), seen(tree=7), seen(tree=8)) == {0, 1}


class TestAIBrix:
    RULE = made(AIBrix)

    def test_the_longest_match_has_it(self) -> None:
        assert best(self.RULE, seen(3, cached=10), seen(3, cached=20), seen(3)) == {1}

    def test_of_equal_matches_the_one_with_fewer_requests(self) -> None:
        assert best(self.RULE, seen(3, cached=20), seen(2, cached=20), seen(2)) == {1}

    def test_a_match_does_not_count_more_than_a_deviation_above_the_mean(self) -> None:
        # 0, 0, 0, 8: the mean is 2, the deviation 3.5.
        assert best(self.RULE, seen(8, cached=900), seen(), seen(), seen(cached=1)) == {3}

    def test_without_a_match_the_fewest_requests(self) -> None:
        assert best(self.RULE, seen(2), seen(1), seen(1)) == {1, 2}

    def test_more_than_eight_requests_apart_is_out_of_balance(self) -> None:
        even = [seen(9, cached=900), *[seen(9)] * 4]
        assert best(self.RULE, *even, seen(1)) == {0}
        assert best(self.RULE, *even, seen(0)) == {5}


class TestLMetric:
    RULE = made(LMetric)

    def test_is_the_product_of_tokens_to_compute_and_requests(self) -> None:
        # 2 x (500 + 100), 3 x 400, 1 x 1,201.
        assert best(self.RULE, seen(1, 500, 900), seen(2, 0, 600), seen(0, 201, 0)) == {0, 1}

    def test_a_prompt_that_is_all_cached_costs_nothing(self) -> None:
        assert best(self.RULE, seen(50, cached=1_010), seen(0, cached=999)) == {0}


class TestSticky:
    RULE = made(Sticky, peak=100.0)

    def test_keeps_to_what_is_warm(self) -> None:
        assert best(self.RULE, seen(backlog=1_800, cached=800), seen()) == {0}

    def test_four_fifths_are_warm(self) -> None:
        assert best(self.RULE, seen(backlog=900, cached=799), seen()) == {1}

    def test_until_it_has_18_seconds_more_to_compute(self) -> None:
        assert best(self.RULE, seen(backlog=1_801, cached=800), seen()) == {1}

    def test_the_best_of_each_kind_are_compared(self) -> None:
        warm = (seen(backlog=9_000, cached=900), seen(backlog=2_000, cached=850))
        assert best(self.RULE, *warm, seen(backlog=200)) == {1}

    def test_of_those_that_are_left_the_least_work_counts(self) -> None:
        assert best(self.RULE, seen(backlog=100, cached=850), seen(cached=800)) == {1}
        assert best(self.RULE, seen(backlog=300), seen(cached=600), seen(cached=500)) == {1}

    def test_where_all_are_warm_so_it_is(self) -> None:
        assert best(self.RULE, seen(backlog=50, cached=900), seen(cached=900)) == {1}


def build(name: str) -> Strategy:
    signals = Signals(lambda: 0.0)
    return published_rules.build(name, LoadBalancingSpec(), rng=Random(0), signals=signals)


class TestByName:
    @pytest.mark.parametrize("name", published_rules.names())
    def test_each_is_of_its_name_and_reads_prompts_and_signals(self, name: str) -> None:
        rule = build(name)
        assert type(rule).__name__ == name
        assert rule.reads_prompts
        assert rule.reads_signals

    def test_another_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"no rule 'Best'; there are CacheAware, AIBrix, LM"):
            build("Best")
