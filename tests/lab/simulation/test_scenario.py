"""The information that sidecars get, by default and for a published rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab import published_rules
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import simulate
from extproc.lab.workloads.workload import Session
from tests.lab.simulation.builders import balancing, engine, scenario, session, turn, workload

ASKED = workload(session(turn("a")))


def of(published_rule: str = "") -> Scenario:
    return Scenario.of(ASKED, engine(), balancing("PrefixCache"), published_rule=published_rule)


def test_strategies_see_what_envoy_shows_by_default() -> None:
    usual = of()
    assert (usual.routing.shown, usual.answers_shown) == (SHIPPED, False)
    assert usual.routing.strategy == "PrefixCache"


@pytest.mark.parametrize("name", published_rules.names())
def test_a_published_rule_sees_everything(name: str) -> None:
    asked = of(name)
    assert (asked.routing.shown, asked.answers_shown) == (EVERYTHING, True)
    run = simulate(asked)
    assert run.strategy == name
    assert run.succeeded.all()


@pytest.mark.parametrize("name", [*published_rules.names(), "PrefixCache"])
def test_rules_for_caches_find_a_repeated_prompt(name: str) -> None:
    again = workload(*(session(turn("a", 3_000), start=1.0 + 20.0 * n) for n in range(6)))
    published_rule = name if name in published_rules.names() else ""
    usual = Scenario.of(again, engine(), balancing("PrefixCache"), published_rule=published_rule)
    assert len(set(simulate(usual).endpoint.tolist())) == 1


class TestSessionHeader:
    ROUTING = Routing(balancing("PrefixHash", prefixHash={"prefixSource": "Header:x-session"}))

    def test_keeps_a_session_together(self) -> None:
        threads = [Session([turn(f"{n} {m}") for m in range(5)]) for n in range(4)]
        run = simulate(
            scenario(workload(*threads, concurrency=1), routing=self.ROUTING, replicas=8)
        )
        homes = [set(run.endpoint[5 * n : 5 * n + 5].tolist()) for n in range(4)]
        assert all(len(home) == 1 for home in homes)

    def test_separates_equal_prompts_of_different_sessions(self) -> None:
        same = [session(turn("a"), start=10.0 * n) for n in range(12)]
        run = simulate(scenario(workload(*same), routing=self.ROUTING, replicas=8))
        assert len(set(run.endpoint.tolist())) > 3

    def test_differs_between_warm_up_and_measurement(self) -> None:
        same = [session(turn("a"), start=10.0 * n) for n in range(12)]
        one = scenario(workload(*same), routing=self.ROUTING, replicas=8)
        warmed = replace(one, workload=replace(workload(*same, *same), warm_up=12))
        assert simulate(one).endpoint.tolist() != simulate(warmed).endpoint.tolist()
