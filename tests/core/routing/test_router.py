from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import ClassVar

import pytest
import xxhash

from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.subset import subset_of
from extproc.core.request.blocks import prompt_of
from extproc.core.request.refusals import ModelNotFound, NoEndpoints
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec
from extproc.core.strategies import Reason, build
from tests.core.builders import (
    TWO_ADDRESSES,
    by_service,
    catalog,
    model_spec,
    router,
    split_spec,
    without_endpoints,
)
from tests.core.clock import Clock

LLAMA = model_spec(adapters=["sql"])
PROMPT = {"prompt": "hello"}


def test_resolves_by_model_adapter_and_prefix() -> None:
    resolved = router(LLAMA).resolve("sql", PROMPT, {})
    assert resolved.model.spec is LLAMA
    assert (resolved.adapter, resolved.prefix) == ("sql", "hello")
    assert resolved.key == xxhash.xxh64_intdigest(b"sqlhello")


def test_refuses_an_unknown_model() -> None:
    with pytest.raises(ModelNotFound):
        router(LLAMA).resolve("gpt", PROMPT, {})


def test_decision_has_its_reasons() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.resolve("llama", PROMPT, {}))
    (other,) = set(TWO_ADDRESSES) - {decision.address}
    assert (decision.model, decision.adapter, decision.strategy) == ("llama", "", "PrefixHash")
    assert decision.key == xxhash.xxh64_intdigest(b"hello")
    assert (decision.reason, decision.hops) == (Reason.PREFIX, 0)
    assert (decision.inflight, decision.candidates) == (0, 2)
    assert decision.fallback == other


def test_decision_holds_a_lease() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.resolve("llama", PROMPT, {}))
    assert dict(serving.fleet.ledger.loads) == {decision.address: 1}
    assert [(m, e.address, n) for m, e, n in serving.fleet.ledger.held()] == [
        ("llama", decision.address, 1)
    ]
    decision.lease.release()
    assert dict(serving.fleet.ledger.loads) == {}


def test_inflight_is_the_load_before_the_request() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    inflight = [serving.decide(serving.resolve("llama", PROMPT, {})).inflight for _ in range(3)]
    assert inflight == [0, 1, 2]


def test_single_endpoint_has_no_fallback() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    decision = serving.decide(serving.resolve("llama", PROMPT, {}))
    assert (decision.fallback, decision.candidates) == (None, 1)
    assert decision.destination == "10.0.0.1:8000"


def test_fallbacks_can_be_turned_off() -> None:
    whole = router(LLAMA)
    serving = Router(Fleet(), whole.catalog, fallbacks=False)
    decision = serving.decide(serving.resolve("llama", PROMPT, {}))
    assert (decision.fallback, decision.candidates) == (None, 2)
    assert decision.destination == decision.address


def test_destination_is_the_chosen_endpoint_and_the_fallback() -> None:
    serving = router(LLAMA)
    decision = serving.decide(serving.resolve("llama", PROMPT, {}))
    assert decision.destination == f"{decision.address},{decision.fallback}"


@pytest.mark.parametrize("allowed", TWO_ADDRESSES)
def test_decision_stays_within_the_subset(allowed: str) -> None:
    serving = router(LLAMA)
    resolved = serving.resolve("sql", PROMPT, {}, subset_of((allowed,)))
    decision = serving.decide(resolved)
    assert (decision.address, decision.fallback, decision.candidates) == (allowed, None, 1)
    assert decision.key == serving.resolve("sql", PROMPT, {}).key


def test_refuses_a_subset_without_ready_endpoints() -> None:
    serving = router(LLAMA)
    with pytest.raises(NoEndpoints, match="the gateway allows"):
        serving.decide(serving.resolve("llama", PROMPT, {}, subset_of(("10.9.9.9:1",))))
    assert dict(serving.fleet.ledger.loads) == {}


def test_refuses_a_model_without_ready_endpoints() -> None:
    serving = Router(Fleet(), without_endpoints(LLAMA))
    with pytest.raises(NoEndpoints) as refused:
        serving.decide(serving.resolve("sql", PROMPT, {}))
    assert refused.value.model == "llama"
    assert dict(serving.fleet.ledger.loads) == {}


def test_empty_catalog_has_no_model() -> None:
    with pytest.raises(ModelNotFound, match="Known models: none"):
        Router(Fleet()).resolve("llama", PROMPT, {})


def test_concurrent_requests_never_overfill_an_endpoint() -> None:
    serving = router(model_spec(strategy="LeastLoad"))
    for _ in range(50):
        serving.decide(serving.resolve("llama", PROMPT, {}))
    assert dict(serving.fleet.ledger.loads) == dict.fromkeys(TWO_ADDRESSES, 25)


def test_fleet_returns_endpoints_by_address() -> None:
    serving = router(LLAMA)
    known = serving.fleet.endpoint("llama", "10.0.0.1:8000")
    assert known.adapters == {"sql"}
    unknown = serving.fleet.endpoint("llama", "10.9.9.9:8000")
    assert (unknown.address, unknown.name) == ("10.9.9.9:8000", "10.9.9.9:8000")
    assert serving.fleet.endpoint("gone", "10.0.0.1:8000").address == "10.0.0.1:8000"


class TestRename:
    @pytest.mark.parametrize(
        ("requested", "rename"),
        [("llama", None), ("l3", "llama"), ("sql", None), ("llama_sql", "sql"), ("l3_sql", "sql")],
    )
    def test_is_the_name_that_servers_know(self, requested: str, rename: str | None) -> None:
        serving = router(model_spec(aliases=["l3"], adapters=["sql"]))
        decision = serving.decide(serving.resolve(requested, PROMPT, {}))
        assert decision.rename == rename

    @pytest.mark.parametrize(
        ("requested", "rename"),
        [("llama", "meta/llama"), ("meta/llama", None), ("l3", "meta/llama"), ("sql", None)],
    )
    def test_is_the_served_name_if_configured(self, requested: str, rename: str | None) -> None:
        spec = model_spec(aliases=["l3", "meta/llama"], adapters=["sql"])
        serving = router(spec.model_copy(update={"served_name": "meta/llama"}))
        assert serving.resolve(requested, PROMPT, {}).rename == rename


class TestSplit:
    ONE = model_spec("one", endpoints=["10.0.0.1:8000"], adapters=["sql"])
    TWO = model_spec("two", endpoints=["10.0.0.2:8000"])

    def models(self, serving: Router, prompts: int = 400, name: str = "canary") -> Counter[str]:
        places = (serving.resolve(name, {"prompt": f"say {i}"}, {}) for i in range(prompts))
        return Counter(f"{p.model.spec.name} {p.adapter} {p.rename}" for p in places)

    def test_shares_requests_by_weight_and_renames_them(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=3, two=1))
        shares = self.models(serving)
        assert shares.keys() == {"one  one", "two  two"}
        assert shares["one  one"] == pytest.approx(300, abs=40)

    def test_can_have_an_adapter_as_target(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(sql=1))
        assert self.models(serving, 5) == {"one sql sql": 5}

    def test_sends_equal_prefixes_to_one_target(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        for i in range(20):
            turns = [{"role": "user", "content": f"question {i}"}]
            first = serving.resolve("canary", {"messages": list(turns)}, {}).model
            for answer in ("a", "b"):
                turns += [{"role": "assistant", "content": answer}]
                assert serving.resolve("canary", {"messages": turns}, {}).model is first

    def test_by_a_header_ignores_the_prompt(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec("canary", "Header:X-User", one=1, two=1))
        assert serving.catalog.key_headers == {"x-user"}
        by_user = {
            user: {
                serving.resolve("canary", {"prompt": f"say {i}"}, {"x-user": user}).model.spec.name
                for i in range(5)
            }
            for user in map(str, range(20))
        }
        assert all(len(models) == 1 for models in by_user.values())
        assert set().union(*by_user.values()) == {"one", "two"}

    def test_without_a_key_is_random(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        models = Counter(serving.resolve("canary", None, {}).model.spec.name for _ in range(400))
        assert models["one"] == pytest.approx(200, abs=50)

    def test_skips_a_target_without_endpoints(self) -> None:
        serving = router(self.ONE, by_service("gone"), split_spec(one=1, gone=9))
        assert self.models(serving, 50) == {"one  one": 50}

    def test_skips_a_target_outside_the_subset(self) -> None:
        serving = router(self.ONE, self.TWO, split_spec(one=1, two=1))
        allowed = subset_of(("10.0.0.2:8000",))
        placed = [serving.resolve("canary", {"prompt": str(i)}, {}, allowed) for i in range(20)]
        assert {p.model.spec.name for p in placed} == {"two"}

    def test_is_refused_without_endpoints_of_any_target(self) -> None:
        serving = router(by_service("gone"), by_service("lost"), split_spec(gone=1, lost=1))
        with pytest.raises(NoEndpoints):
            serving.decide(serving.resolve("canary", PROMPT, {}))

    def test_is_listed_and_named_in_refusals(self) -> None:
        serving = router(self.ONE, split_spec(one=1))
        assert list(serving.catalog.names_in_order()) == ["one", "sql", "canary"]
        with pytest.raises(ModelNotFound, match="canary, one, sql"):
            serving.resolve("gpt", PROMPT, {})


def words(name: str, size: int = 4000) -> str:
    """Return a text with a beginning of its own for each name."""
    return "".join(f"{name} {number}, " for number in range(size))[:size]


def remembering(*specs: ModelSpec) -> Router:
    """Return a router whose strategies use its signals."""
    fleet = Fleet(Clock())
    make = partial(build, rng=Random(0), signals=fleet.signals)
    return Router(fleet, revise(Catalog(), specs, make))


class TestStrategyThatReadsPrompts:
    SPEC = model_spec(strategy="PrefixCache", adapters=["sql"], aliases=["l3"])
    ASKED: ClassVar = {"prompt": words("story")}

    def test_gets_the_whole_prompt(self) -> None:
        resolved = remembering(self.SPEC).resolve("llama", self.ASKED, {})
        assert resolved.prompt == prompt_of(self.ASKED, "llama")
        assert len(resolved.prompt.blocks) == 15

    def test_gets_the_size_of_a_prompt_that_is_shown_in_part(self) -> None:
        resolved = remembering(self.SPEC).resolve("llama", self.ASKED, {}, shown=0.5)
        assert resolved.prompt == prompt_of(self.ASKED, "llama", share=0.5)
        assert resolved.prompt.bytes == pytest.approx(8000, abs=2)

    def test_hashes_by_model_and_adapter_and_not_by_alias(self) -> None:
        serving = remembering(self.SPEC)
        blocks = {
            name: prompt.blocks[0]
            for name in ("llama", "l3", "sql", "l3_sql")
            if (prompt := serving.resolve(name, self.ASKED, {}).prompt)
        }
        assert blocks["llama"] == blocks["l3"] != blocks["sql"] == blocks["l3_sql"]

    def test_is_the_only_kind_that_gets_prompts(self) -> None:
        assert router(LLAMA).resolve("llama", self.ASKED, {}).prompt is None

    def test_predicts_cached_tokens(self) -> None:
        serving = remembering(self.SPEC)
        first = serving.decide(serving.resolve("llama", self.ASKED, {}))
        first.lease.release()
        again = serving.decide(serving.resolve("llama", self.ASKED, {}))
        assert first.prediction is not None
        assert again.prediction is not None
        assert first.prediction == pytest.approx((1000, 0), abs=1)
        assert first.prediction.hit == 0
        assert again.prediction.hit == pytest.approx(0.96, rel=0.01)
        assert again.address == first.address
        assert [first.reason, again.reason] == [Reason.COLD, Reason.CACHED]

    def test_predicts_with_the_models_token_size(self) -> None:
        serving = remembering(self.SPEC)
        for _ in range(500):
            serving.fleet.signals.token_sizes.record("llama", 2000, 1000)
        decision = serving.decide(serving.resolve("llama", self.ASKED, {}))
        assert decision.prediction is not None
        assert decision.prediction.prompt_tokens == pytest.approx(2000, rel=0.01)

    def test_adds_uncached_tokens_to_the_backlog(self) -> None:
        serving = remembering(self.SPEC)
        backlog = serving.fleet.signals.backlog
        first = serving.decide(serving.resolve("llama", self.ASKED, {}))
        assert dict(backlog.tokens) == {first.address: pytest.approx(1000, abs=1)}
        first.lease.finish_prefill()
        assert dict(backlog.tokens) == {}
        again = serving.decide(serving.resolve("llama", self.ASKED, {}))
        assert again.address == first.address
        assert 0 < backlog.tokens[first.address] < 100
        again.lease.release()
        assert dict(backlog.tokens) == {}

    def test_moves_the_backlog_with_the_lease(self) -> None:
        serving = remembering(self.SPEC)
        decision = serving.decide(serving.resolve("llama", self.ASKED, {}))
        assert decision.fallback is not None
        decision.lease.move(serving.fleet.endpoint("llama", decision.fallback))
        assert dict(serving.fleet.signals.backlog.tokens) == {
            decision.fallback: pytest.approx(1000, abs=1)
        }

    def test_names_another_endpoint_as_fallback(self) -> None:
        serving = remembering(self.SPEC)
        for number in range(20):
            asked = {"prompt": words(f"{number % 3}")}
            decision = serving.decide(serving.resolve("llama", asked, {}))
            assert {decision.address, decision.fallback} == set(TWO_ADDRESSES)

    def test_predicts_nothing_without_a_prompt(self) -> None:
        # For embeddings and transcriptions only the model is read.
        serving = remembering(self.SPEC)
        decisions = [serving.decide(serving.resolve("llama", None, {})) for _ in range(20)]
        assert {decision.prediction for decision in decisions} == {None}
        assert {decision.lease.prefill for decision in decisions} == {None}
        assert dict(serving.fleet.signals.backlog.tokens) == {}
        assert min(serving.fleet.ledger.loads[address] for address in TWO_ADDRESSES) >= 7

    @pytest.mark.parametrize("allowed", TWO_ADDRESSES)
    def test_stays_within_the_subset(self, allowed: str) -> None:
        serving = remembering(self.SPEC)
        home = serving.decide(serving.resolve("sql", self.ASKED, {}))
        home.lease.release()
        restricted = serving.resolve("sql", self.ASKED, {}, subset_of((allowed,)))
        decision = serving.decide(restricted)
        assert (decision.address, decision.fallback, decision.candidates) == (allowed, None, 1)

    def test_refuses_without_ready_endpoints(self) -> None:
        serving = remembering(self.SPEC)
        nowhere = serving.resolve("llama", self.ASKED, {}, subset_of(("10.9.9.9:1",)))
        with pytest.raises(NoEndpoints):
            serving.decide(nowhere)
        assert dict(serving.fleet.signals.backlog.tokens) == {}
        assert len(serving.fleet.signals.prefixes) == 0

    def test_behind_a_split_gets_the_prompt_and_its_share(self) -> None:
        one = model_spec("one", endpoints=["10.0.0.1:8000"], strategy="PrefixCache")
        serving = remembering(one, split_spec(one=1))
        resolved = serving.resolve("canary", self.ASKED, {}, shown=0.25)
        assert resolved.prompt == prompt_of(self.ASKED, "one", share=0.25)
        assert resolved.rename == "one"


class TestStrategyThatReadsNoPrompts:
    @pytest.mark.parametrize("strategy", ["PrefixHash", "LeastLoad", "LeastQueue", "RoundRobin"])
    def test_predicts_nothing_and_adds_no_backlog(self, strategy: str) -> None:
        serving = remembering(model_spec(strategy=strategy))
        decision = serving.decide(serving.resolve("llama", {"prompt": words("story")}, {}))
        assert (decision.prediction, decision.lease.prefill) == (None, None)
        assert dict(serving.fleet.signals.backlog.tokens) == {}
        assert len(serving.fleet.signals.prefixes) == 0


def test_subscribers_get_each_published_catalog() -> None:
    serving = router(LLAMA)
    seen: list[object] = []
    serving.subscribe(seen.append)
    other = router(model_spec("qwen")).catalog
    serving.publish(other)
    assert serving.catalog is other
    assert seen == [other]


class TestCurrent:
    """A request that waited meets a catalog that was published meanwhile."""

    def waited(self, before: ModelSpec, *after: ModelSpec, name: str = "llama") -> ResolvedRequest:
        serving = router(before)
        resolved = serving.resolve(name, {"prompt": "tell me of the sea " * 99}, {})
        serving.publish(catalog(*after))
        return serving.current(resolved)

    def resolved(self, *specs: ModelSpec, name: str = "llama") -> ResolvedRequest:
        """Return the same request as if it came now."""
        return router(*specs).resolve(name, {"prompt": "tell me of the sea " * 99}, {})

    def test_keeps_the_model_of_the_same_name(self) -> None:
        again = self.waited(model_spec("llama"), model_spec("llama", endpoints=["10.0.0.9:8000"]))
        assert [one.address for one in again.snapshot.endpoints] == ["10.0.0.9:8000"]

    def test_is_that_of_a_new_request_if_the_model_has_another_name(self) -> None:
        other = model_spec("new", aliases=["llama"])
        again, now = self.waited(model_spec("llama"), other), self.resolved(other)
        for name in ("adapter", "prefix", "key", "rename", "requested"):
            assert getattr(again, name) == getattr(now, name), name
        assert again.model.spec.name == "new"
        assert again.rename == "new"

    def test_keeps_the_prompt_if_servers_know_the_model_by_the_same_name(self) -> None:
        kept = {"strategy": "PrefixCache"}
        same = model_spec("new", aliases=["llama"], **kept).model_copy(
            update={"served_name": "llama"}
        )
        again, now = self.waited(model_spec("llama", **kept), same), self.resolved(same)
        assert now.prompt is not None
        assert again.prompt == now.prompt
        assert again.rename is None
        renamed = model_spec("new", aliases=["llama"], **kept)
        assert self.waited(model_spec("llama", **kept), renamed).prompt is None

    def test_has_no_key_if_it_was_read_for_another_one(self) -> None:
        longer = model_spec("new", aliases=["llama"], prefixCharLength=7)
        assert self.waited(model_spec("llama"), longer).key is None
        adapter = model_spec("base", adapters=["llama"])
        again = self.waited(model_spec("llama"), adapter)
        assert (again.adapter, again.prefix) == ("llama", "")

    def test_goes_to_a_target_of_the_split_that_has_the_name(self) -> None:
        again = self.waited(model_spec("llama"), model_spec("base"), split_spec("llama", base=1))
        assert (again.model.spec.name, again.rename, again.requested) == ("base", "base", "llama")

    def test_is_refused_if_no_model_has_the_name(self) -> None:
        with pytest.raises(ModelNotFound):
            self.waited(model_spec("llama"), model_spec("other"))

    def test_keeps_the_model_of_a_name_that_now_means_another(self) -> None:
        before = model_spec("llama", aliases=["l"])
        again = self.waited(before, model_spec("llama"), model_spec("new", aliases=["l"]), name="l")
        assert again.model.spec.name == "llama"
