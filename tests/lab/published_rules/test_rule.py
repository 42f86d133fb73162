"""The base of the published rules: inputs, records and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from extproc.core.fleet.endpoint import Endpoint, Snapshot
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.signals import Signals
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Candidate, Query, Reason
from extproc.lab.published_rules.lmetric import LMetric
from extproc.lab.published_rules.rule import Cost, Rule, Seen

ENDPOINTS = [
    Endpoint("10.0.0.0:80", "pod-0"),
    Endpoint("10.0.0.1:80", "pod-1", frozenset({"sql"})),
    Endpoint("10.0.0.2:80", "pod-2", frozenset({"sql"})),
]
SNAPSHOT = Snapshot.of(ENDPOINTS)
A, B, C = (endpoint.address for endpoint in ENDPOINTS)
QUERY = Query(prompt=Prompt(list(range(10)), 2_600))  # 650 tokens, of which 640 in blocks


class Recording(Rule):
    """Rule with given costs that records what it sees."""

    given: Sequence[Cost] = ((0.0,),) * 3

    def costs(self, tokens: float, endpoints: Sequence[Seen]) -> Sequence[Cost]:
        self.tokens, self.endpoints = tokens, endpoints
        return self.given[: len(endpoints)]


@pytest.fixture
def signals() -> Signals:
    return Signals(lambda: 0.0)


@pytest.fixture
def rule(signals: Signals) -> Recording:
    return Recording(signals, Random(0))


def ranked(rule: Rule, query: Query = QUERY, **loads: int) -> Iterator[Candidate]:
    return rule.rank(query, SNAPSHOT, {f"10.0.0.{n[1:]}:80": load for n, load in loads.items()})


def test_a_rule_sees_requests_backlog_match_and_tree_of_each_endpoint(
    rule: Recording, signals: Signals
) -> None:
    signals.prefixes.sent(A, range(4))
    signals.prefixes.sent(A, range(100, 103))
    signals.backlog.add(B, 321)
    next(ranked(rule, e2=7))
    assert rule.tokens == 650
    assert rule.endpoints == [
        Seen(0, 0.0, 4 * 64.0, 7),
        Seen(0, 321.0, 0.0, 0),
        Seen(7, 0.0, 0.0, 0),
    ]


def test_candidates_are_sorted_by_cost_and_listed_once(rule: Recording) -> None:
    rule.given = ((3.0, 0.0), (1.0, 9.0), (1.0, 2.0))
    found = list(ranked(rule))
    assert [one.endpoint.address for one in found] == [C, B, A]
    assert [one.hops for one in found] == [0, 1, 2]


def test_ties_are_broken_at_random(rule: Recording) -> None:
    rule.given = ((1.0,), (2.0,), (1.0,))
    chosen = Counter(next(ranked(rule)).endpoint.address for _ in range(60))
    assert set(chosen) == {A, C}
    assert min(chosen.values()) > 15


def test_candidates_predict_the_cached_tokens(rule: Recording, signals: Signals) -> None:
    signals.prefixes.sent(B, range(5))
    found = {one.endpoint.address: one for one in ranked(rule)}
    assert found[B].prediction == (650, 5 * 64)
    assert found[A].prediction == (650, 0)
    assert (found[B].reason, found[A].reason) == (Reason.CACHED, Reason.LEAST_LOAD)


def test_sent_prompts_are_recorded(signals: Signals) -> None:
    rule = LMetric(signals, Random(0))
    first = next(ranked(rule))
    Fleet(signals=signals).store(first.endpoint.address, rule.describe(QUERY, first))
    again = [next(ranked(rule)).endpoint for _ in range(10)]
    assert set(again) == {first.endpoint}


def test_only_endpoints_with_the_adapter_are_ranked(rule: Recording) -> None:
    found = ranked(rule, QUERY._replace(adapter="sql"))
    assert {one.endpoint.address for one in found} == {B, C}
    assert list(ranked(rule, QUERY._replace(adapter="other"))) == []


def test_requests_without_a_prompt_are_ranked(rule: Recording) -> None:
    query = Query()
    found = list(ranked(rule, query))
    assert rule.describe(query, found[0]).chains == ()
    assert len(found) == 3
    assert rule.tokens == 0
