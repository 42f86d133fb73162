from __future__ import annotations

import json
from collections import Counter

import pytest
import xxhash

from extproc.core.errors import ModelNotFound, NoEndpoints
from extproc.core.ledger import Ledger
from extproc.core.router import Router
from extproc.core.strategies import Reason
from extproc.core.subset import subset_of
from tests.core.builders import (
    TWO_ADDRESSES,
    by_service,
    model_spec,
    router,
    split_spec,
    without_endpoints,
)

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


class TestTheNameInTheBody:
    @pytest.mark.parametrize(
        ("requested", "rename"),
        [("llama", None), ("l3", "llama"), ("sql", None), ("llama_sql", "sql"), ("l3_sql", "sql")],
    )
    def test_becomes_the_one_that_servers_know(self, requested: str, rename: str | None) -> None:
        serving = router(model_spec(aliases=["l3"], adapters=["sql"]))
        decision = serving.decide(serving.place(requested, PROMPT, {}))
        assert decision.rename == rename

    @pytest.mark.parametrize(
        ("requested", "rename"),
        [("llama", "meta/llama"), ("meta/llama", None), ("l3", "meta/llama"), ("sql", None)],
    )
    def test_is_the_served_name_where_that_is_another(
        self, requested: str, rename: str | None
    ) -> None:
        spec = model_spec(aliases=["l3", "meta/llama"], adapters=["sql"])
        serving = router(spec.model_copy(update={"served_name": "meta/llama"}))
        assert serving.place(requested, PROMPT, {}).rename == rename


class TestASplit:
    ONE = model_spec("one", endpoints=["10.0.0.1:8000"], adapters=["sql"])
    TWO = model_spec("two", endpoints=["10.0.0.2:8000"])

    def models(self, serving: Router, prompts: int = 400, name: str = "canary") -> Counter[str]:
        places = (serving.place(name, {"prompt": f"say {i}"}, {}) for i in range(prompts))
        return Counter(f"{p.model.spec.name} {p.adapter} {p.rename}" for p in places)

    def test_shares_requests_by_weight_and_renames_them(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=3, two=1))
        shares = self.models(serving)
        assert shares.keys() == {"one  one", "two  two"}
        assert shares["one  one"] == pytest.approx(300, abs=40)

    def test_may_have_an_adapter_as_its_target(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(sql=1))
        assert self.models(serving, 5) == {"one sql sql": 5}

    def test_sends_what_begins_alike_to_the_same_target(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        for i in range(20):
            turns = [{"role": "user", "content": f"question {i}"}]
            first = serving.place("canary", {"messages": list(turns)}, {}).model
            for answer in ("a", "b"):
                turns += [{"role": "assistant", "content": answer}]
                assert serving.place("canary", {"messages": turns}, {}).model is first

    def test_by_a_header_does_not_look_at_the_prompt(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec("canary", "Header:X-User", one=1, two=1))
        assert serving.catalog.key_headers == {"x-user"}
        by_user = {
            user: {
                serving.place("canary", {"prompt": f"say {i}"}, {"x-user": user}).model.spec.name
                for i in range(5)
            }
            for user in map(str, range(20))
        }
        assert all(len(models) == 1 for models in by_user.values())
        assert set().union(*by_user.values()) == {"one", "two"}

    def test_without_anything_to_stick_to_is_shared_by_chance(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        models = Counter(serving.place("canary", None, {}).model.spec.name for _ in range(400))
        assert models["one"] == pytest.approx(200, abs=50)

    def test_passes_over_a_target_without_endpoints(self) -> None:
        serving = router(self.ONE, by_service("gone"), split_spec(one=1, gone=9))
        assert self.models(serving, 50) == {"one  one": 50}

    def test_passes_over_a_target_that_the_gateway_does_not_allow(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        allowed = subset_of(("10.0.0.2:8000",))
        placed = [serving.place("canary", {"prompt": str(i)}, {}, allowed) for i in range(20)]
        assert {p.model.spec.name for p in placed} == {"two"}

    def test_is_refused_where_no_target_has_endpoints(self) -> None:
        serving = router(by_service("gone"), by_service("lost"), split_spec(gone=1, lost=1))
        with pytest.raises(NoEndpoints):
            serving.decide(serving.place("canary", PROMPT, {}))

    def test_is_a_name_in_the_list_of_models_and_in_refusals(self) -> None:
        serving = router(self.ONE, split_spec(one=1))
        listed = [entry["id"] for entry in json.loads(serving.catalog.listing())["data"]]
        assert listed == ["one", "sql", "canary"]
        with pytest.raises(ModelNotFound, match="canary, one, sql"):
            serving.place("gpt", PROMPT, {})


def test_those_who_follow_see_each_catalog_that_is_published() -> None:
    serving = router(LLAMA)
    seen: list[object] = []
    serving.follow(seen.append)
    other = router(model_spec("qwen")).catalog
    serving.publish(other)
    assert serving.catalog is other
    assert seen == [other]
