from __future__ import annotations

import pytest
import xxhash

from extproc.core.errors import ModelNotFound, NoEndpoints
from extproc.core.ledger import Ledger
from extproc.core.router import Router
from extproc.core.strategies import Reason
from extproc.core.subset import subset_of
from tests.core.builders import TWO_ADDRESSES, model_spec, router, without_endpoints

LLAMA = model_spec(adapters=["sql"])
PROMPT = {"prompt": "hello"}


def test_a_request_is_placed_by_its_model_adapter_and_prefix() -> None:
    placement = router(LLAMA).place("sql", PROMPT, {})
    assert placement.model.spec is LLAMA
    assert (placement.adapter, placement.prefix) == ("sql", "hello")
    assert placement.key == xxhash.xxh64_intdigest(b"sqlhello")


def test_a_request_for_an_unknown_model_is_refused() -> None:
    with pytest.raises(ModelNotFound):
        router(LLAMA).place("gpt", PROMPT, {})


def test_a_decision_tells_what_it_was_made_of() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.place("llama", PROMPT, {}))
    (other,) = set(TWO_ADDRESSES) - {decision.address}
    assert (decision.model, decision.adapter, decision.strategy) == ("llama", "", "PrefixHash")
    assert decision.key == xxhash.xxh64_intdigest(b"hello")
    assert (decision.reason, decision.hops) == (Reason.PREFIX, 0)
    assert (decision.inflight, decision.candidates) == (0, 2)
    assert decision.fallback == other


def test_a_decision_holds_a_lease_from_the_moment_it_is_made() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.place("llama", PROMPT, {}))
    assert dict(serving.ledger.loads) == {decision.address: 1}
    assert [(m, e.address, n) for m, e, n in serving.ledger.held()] == [
        ("llama", decision.address, 1)
    ]
    decision.lease.release()
    assert dict(serving.ledger.loads) == {}


def test_inflight_is_the_load_before_this_request() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    inflight = [serving.decide(serving.place("llama", PROMPT, {})).inflight for _ in range(3)]
    assert inflight == [0, 1, 2]


def test_one_endpoint_alone_has_no_fallback() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    decision = serving.decide(serving.place("llama", PROMPT, {}))
    assert (decision.fallback, decision.candidates) == (None, 1)
    assert decision.destination == "10.0.0.1:8000"


def test_a_router_without_fallbacks_names_one_endpoint_only() -> None:
    whole = router(LLAMA)
    serving = Router(Ledger(), whole.catalog, fallbacks=False)
    decision = serving.decide(serving.place("llama", PROMPT, {}))
    assert (decision.fallback, decision.candidates) == (None, 2)
    assert decision.destination == decision.address


def test_the_destination_is_the_chosen_endpoint_and_the_fallback() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.place("llama", PROMPT, {}))
    assert decision.destination == f"{decision.address},{decision.fallback}"


@pytest.mark.parametrize("allowed", TWO_ADDRESSES)
def test_a_request_stays_within_the_subset_that_is_allowed(allowed: str) -> None:
    serving = router(LLAMA)
    placement = serving.place("sql", PROMPT, {}, subset_of((allowed,)))
    decision = serving.decide(placement)
    assert (decision.address, decision.fallback, decision.candidates) == (allowed, None, 1)
    assert decision.key == serving.place("sql", PROMPT, {}).key


def test_a_subset_without_a_ready_endpoint_is_refused_and_counts_nothing() -> None:
    serving = router(LLAMA)
    with pytest.raises(NoEndpoints, match="the gateway allows"):
        serving.decide(serving.place("llama", PROMPT, {}, subset_of(("10.9.9.9:1",))))
    assert dict(serving.ledger.loads) == {}


def test_a_model_without_ready_endpoints_is_refused_and_counts_nothing() -> None:
    serving = Router(Ledger(), without_endpoints(LLAMA))
    with pytest.raises(NoEndpoints) as refused:
        serving.decide(serving.place("sql", PROMPT, {}))
    assert refused.value.model == "llama"
    assert dict(serving.ledger.loads) == {}


def test_a_router_without_a_catalog_knows_no_model() -> None:
    with pytest.raises(ModelNotFound, match="Known models: none"):
        Router(Ledger()).place("llama", PROMPT, {})


def test_concurrent_requests_never_share_one_free_place() -> None:
    serving = router(model_spec(strategy="LeastLoad"))
    for _ in range(50):
        serving.decide(serving.place("llama", PROMPT, {}))
    assert dict(serving.ledger.loads) == dict.fromkeys(TWO_ADDRESSES, 25)


def test_an_endpoint_is_found_by_its_address_or_known_by_nothing_else() -> None:
    serving = router(LLAMA)
    known = serving.endpoint("llama", "10.0.0.1:8000")
    assert known.adapters == {"sql"}
    unknown = serving.endpoint("llama", "10.9.9.9:8000")
    assert (unknown.address, unknown.name) == ("10.9.9.9:8000", "10.9.9.9:8000")
    assert serving.endpoint("gone", "10.0.0.1:8000").address == "10.0.0.1:8000"
