"""The explanation of a request on the live state of a router."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from extproc.core.fleet.ejection import Ejected
from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.router import Router
from extproc.core.schema import StrategyName
from extproc.core.strategies import Reason
from extproc.explain import explain_now
from extproc.explanation import Explanation
from tests.core.builders import model_spec, router, split_spec
from tests.edge.envoy import chat_request

CHAT = "/v1/chat/completions"
NAMES: tuple[StrategyName, ...] = tuple(name for name in get_args(StrategyName) if name != "Chain")
FOUR = [f"10.0.0.{number}:8000" for number in range(1, 5)]
DRAWN = {"Random", "LeastLoad", "LeastRequest", "LowLatency"}
"""Strategies that choose at random, at least among equals."""


def explained(live: Router, prompt: str = "hello", model: str = "llama") -> Explanation:
    body = json.dumps(chat_request(model, prompt)).encode()
    return explain_now(live, body, CHAT, {})


def decided(live: Router, prompt: str = "hello", model: str = "llama") -> Any:
    return live.decide(live.resolve(model, chat_request(model, prompt), {}))


def indexed(live: Router) -> int:
    """Return the blocks in the prefix index."""
    return sum(map(live.fleet.signals.prefixes.size, FOUR))


@pytest.mark.parametrize("strategy", NAMES)
def test_agrees_with_the_next_decision_and_changes_nothing(strategy: StrategyName) -> None:
    live = router(model_spec(strategy=strategy, endpoints=FOUR))
    for number in range(12):
        before, blocks = dict(live.fleet.ledger.loads), indexed(live)
        found = [explained(live, f"prompt {number % 5} " * 40) for _ in range(3)]
        assert live.fleet.ledger.loads == before
        assert indexed(live) == blocks
        decision = decided(live, f"prompt {number % 5} " * 40)
        if strategy not in DRAWN:
            assert {one.endpoint for one in found} == {decision.address}
            assert {one.reason for one in found} == {decision.reason}
        assert [one.inflight for one in found[0].candidates] == [
            before.get(one.address, 0) for one in found[0].candidates
        ]


def test_predicts_cache_hits_by_the_live_index() -> None:
    live = router(model_spec(strategy="PrefixCache", endpoints=FOUR))
    prompt = "a long prompt " * 100
    assert explained(live, prompt).reason is Reason.COLD
    assert explained(live, prompt).candidates[0].predicted_hit == 0
    first = decided(live, prompt)
    first.lease.release()
    again = explained(live, prompt)
    assert (again.endpoint, again.reason) == (first.address, Reason.CACHED)
    hits = {one.address: one.predicted_hit for one in again.candidates}
    assert (hits[first.address] or 0) > 0.8
    assert {hits[address] for address in FOUR if address != first.address} == {0}


def test_starts_no_trial_of_an_ejected_endpoint() -> None:
    live = router(model_spec())
    ejection, home = live.fleet.ejection, explained(live).endpoint
    assert home
    for _ in range(3):
        ejection.record(home, Outcome.RESET)
    assert explained(live).endpoint != home
    ejection._ejected[home] = Ejected(seconds=5, until=0, since=0)
    assert explained(live).endpoint == home
    assert not ejection.ejected[home].on_trial
    assert decided(live).address == home
    assert ejection.ejected[home].on_trial


def test_keeps_ejections_above_half_of_the_endpoints() -> None:
    live = router(model_spec())
    assert live.catalog.models["llama"].snapshot
    live.fleet.ejection._ejected.update(
        {one.address: Ejected(5, 5, 0) for one in live.fleet.endpoints.values()}
    )
    explained(live)
    assert len(live.fleet.ejection.ejected) == 2, "as the sidecar left them"


def test_follows_splits_and_refusals() -> None:
    live = router(model_spec("old"), model_spec("new"), split_spec(old=0, new=1))
    assert explained(live, model="canary").model == "new"
    refused = explained(live, model="gpt")
    assert refused.error
    assert refused.error["code"] == "model_not_found"


def test_unknown_path_passes_if_the_operator_wants_it() -> None:
    live = router()
    for pass_unknown, code in ((False, "unknown_path"), (True, "passed")):
        found = explain_now(live, b"{}", "/elsewhere", {}, pass_unknown=pass_unknown)
        assert found.error
        assert found.error["code"] == code


def test_uses_headers() -> None:
    live = router(model_spec(prefixSource="Session"))
    body = json.dumps(chat_request("llama", "x")).encode()
    found = explain_now(live, body, CHAT, {"Session-Id": "7"})
    assert (found.prefix, found.session) == ("7", "Header:session-id")
