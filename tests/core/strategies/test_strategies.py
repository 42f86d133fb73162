from __future__ import annotations

import pytest

from extproc.core.request.blocks import Prompt
from extproc.core.schema import LoadBalancingSpec, StrategyName
from extproc.core.strategies import Query, Strategy
from extproc.core.strategies.least_load import LeastLoad
from extproc.core.strategies.prefix_cache import PrefixCache
from extproc.core.strategies.prefix_hash import PrefixHash
from extproc.core.strategies.random_choice import RandomChoice
from extproc.core.strategies.round_robin import RoundRobin
from tests.core.builders import Traffic, endpoints, model_spec, strategy_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PrefixHash", PrefixHash),
        ("PrefixCache", PrefixCache),
        ("LeastLoad", LeastLoad),
        ("RoundRobin", RoundRobin),
        ("Random", RandomChoice),
    ],
)
def test_name_selects_the_strategy(name: StrategyName, kind: type[Strategy]) -> None:
    assert type(strategy_of(LoadBalancingSpec(strategy=name))) is kind


def test_prefix_hash_is_the_default() -> None:
    assert isinstance(strategy_of(LoadBalancingSpec()), PrefixHash)


@pytest.mark.parametrize(
    ("source", "homes"), [("FirstUserMessage", 1), ("PromptHead", 1), ("Header:x-session", 8)]
)
def test_prefix_cache_prefers_the_header_for_the_home_endpoint(source: str, homes: int) -> None:
    spec = model_spec(strategy="PrefixCache", prefixSource=source).load_balancing
    traffic = Traffic(strategy_of(spec), *endpoints(8))
    # Each prompt is only a system prompt, with another key.
    asked = (Query(key=key, prompt=Prompt(range(8), 2048, 8)) for key in range(0, 2**64, 2**58))
    assert len({traffic.rank(one)[0].endpoint for one in asked}) == homes


@pytest.mark.parametrize(("factor", "at_home"), [(100, 2), (150, 14), (200, 100)])
def test_prefix_hash_uses_the_configured_load_bound(factor: int, at_home: int) -> None:
    spec = model_spec(meanLoadFactor=factor).load_balancing
    traffic = Traffic(strategy_of(spec), *endpoints(2))
    home, other = (c.endpoint.name for c in traffic.rank(Query(key=7)))
    traffic.load({home: 5, other: 5})
    # The request after n others stays if 5 + n <= (10 + n + 1) / 2 * factor / 100.
    firsts = [next(iter(traffic.send(1, Query(key=7)))) for _ in range(100)]
    assert [*firsts, other].index(other) == at_home
