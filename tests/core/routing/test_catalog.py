from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec
from tests.core.builders import by_service, catalog, model_spec, split_spec, strategy_of

LLAMA = model_spec("llama", aliases=["llama-latest"], adapters=["sql-lora", "my_lora"])
QWEN = model_spec("qwen_2_5", adapters=["law_v_2"])


class TestResolve:
    @pytest.mark.parametrize(
        ("name", "model", "adapter"),
        [
            pytest.param("llama", "llama", "", id="model"),
            pytest.param("llama-latest", "llama", "", id="alias"),
            pytest.param("sql-lora", "llama", "sql-lora", id="adapter"),
            pytest.param("llama_", "llama", "", id="model_"),
            pytest.param("llama-latest_", "llama", "", id="alias_"),
            pytest.param("llama_sql-lora", "llama", "sql-lora", id="model_adapter"),
            pytest.param("llama-latest_sql-lora", "llama", "sql-lora", id="alias_adapter"),
            pytest.param("my_lora", "llama", "my_lora", id="adapter with underscore"),
            pytest.param("llama_my_lora", "llama", "my_lora", id="model_adapter_"),
            pytest.param("qwen_2_5", "qwen_2_5", "", id="model with underscores"),
            pytest.param("qwen_2_5_law_v_2", "qwen_2_5", "law_v_2", id="underscores in both"),
        ],
    )
    def test_returns_model_and_adapter(self, name: str, model: str, adapter: str) -> None:
        models = catalog(LLAMA, QWEN)
        found, with_adapter = models.resolve(name)
        assert (found.spec.name, with_adapter) == (model, adapter)
        assert models.names(name)

    @pytest.mark.parametrize(
        "name",
        [
            *["", "_", "gpt", "Llama", "llama__", "_llama", "_sql-lora", "llama__sql-lora"],
            # An adapter of another model or of no model.
            *["llama_law_v_2", "qwen_2_5_sql-lora", "llama_gpt", "qwen", "qwen_2", "lora"],
            # A model is not an adapter, and an adapter is not a model.
            *["llama_qwen_2_5", "llama_llama", "sql-lora_my_lora", "my_lora_my_lora", "sql-lora_"],
        ],
    )
    def test_raises_for_an_unknown_name(self, name: str) -> None:
        models = catalog(LLAMA, QWEN)
        assert not models.names(name)
        with pytest.raises(ModelNotFound) as missing:
            models.resolve(name)
        for known in ("llama", "llama-latest", "my_lora", "sql-lora", "qwen_2_5", "law_v_2"):
            assert known in missing.value.message

    def test_rejects_a_long_name_of_separators_quickly(self) -> None:
        # Trying each separator would take hours.
        assert not catalog(LLAMA, QWEN).names("a" + "_" * 3_000_000)

    def test_prefers_a_models_name_to_the_model_adapter_form(self) -> None:
        joined = model_spec("llama_sql-lora")
        found, adapter = catalog(LLAMA, joined).resolve("llama_sql-lora")
        assert (found.spec.name, adapter) == ("llama_sql-lora", "")


def test_only_model() -> None:
    only = catalog(LLAMA).only()
    assert only is not None
    assert only.spec is LLAMA
    assert catalog(LLAMA, QWEN).only() is None
    assert Catalog().only() is None


def test_only_model_is_the_default_without_splits() -> None:
    assert catalog(LLAMA).default() == "llama"
    for models in (catalog(LLAMA, QWEN), catalog(LLAMA, split_spec(llama=1)), Catalog()):
        assert models.default() is None


def test_key_headers_are_those_of_all_models() -> None:
    by_session = model_spec("a", prefixSource="Header:X-Session")
    assert list(catalog(LLAMA, by_session).key_headers) == ["x-session"]


def test_static_endpoint_has_all_adapters_and_its_address_as_name() -> None:
    snapshot = catalog(LLAMA).models["llama"].snapshot
    assert [(e.address, e.name) for e in snapshot.endpoints] == [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("10.0.0.2:8000", "10.0.0.2:8000"),
    ]
    assert snapshot.eligible("my_lora") == snapshot.endpoints


def test_replication_sets_the_nodes_of_each_endpoint() -> None:
    spec = model_spec(replication=7)
    assert len(catalog(spec).models["llama"].snapshot.ring) == 14


class TestRevise:
    def test_keeps_the_strategy_if_load_balancing_did_not_change(self) -> None:
        before = catalog(LLAMA, QWEN)
        moved = LLAMA.model_copy(update={"endpoints": ("10.0.0.9:8000",), "aliases": ()})
        after = revise(before, [QWEN, moved], strategy_of)
        assert after.models["llama"].strategy is before.models["llama"].strategy
        assert after.models["qwen_2_5"].strategy is before.models["qwen_2_5"].strategy
        assert [e.address for e in after.models["llama"].snapshot.endpoints] == ["10.0.0.9:8000"]
        assert not after.names("llama-latest")

    @pytest.mark.parametrize(
        "changed",
        [
            model_spec("llama", strategy="RoundRobin"),
            model_spec("llama", meanLoadFactor=150),
            model_spec("llama", prefixSource="PromptHead"),
        ],
    )
    def test_replaces_the_strategy_if_load_balancing_changed(self, changed: ModelSpec) -> None:
        before = catalog(model_spec("llama"))
        after = revise(before, [changed], strategy_of)
        assert after.models["llama"].strategy is not before.models["llama"].strategy

    def test_does_not_pass_a_strategy_to_another_model(self) -> None:
        before = catalog(model_spec("a"))
        after = revise(before, [model_spec("b")], strategy_of)
        assert after.models["b"].strategy is not before.models["a"].strategy

    def test_leaves_the_previous_catalog_unchanged(self) -> None:
        before = catalog(LLAMA, QWEN)
        revise(before, [model_spec("other")], strategy_of)
        assert before.names("llama")
        assert not before.names("other")

    def test_leaves_in_flight_requests_counted(self) -> None:
        serving = Router(Fleet(), catalog(LLAMA))
        decision = serving.decide(serving.resolve("llama", {"prompt": "hi"}, {}))
        serving.publish(revise(serving.catalog, [QWEN], strategy_of))
        assert dict(serving.fleet.ledger.loads) == {decision.address: 1}
        serving.publish(revise(serving.catalog, [LLAMA], strategy_of))
        again = serving.decide(serving.resolve("llama", {"prompt": "hi"}, {}))
        assert (again.address, again.inflight) == (decision.address, 1)
        decision.lease.release()
        again.lease.release()
        assert dict(serving.fleet.ledger.loads) == {}


class TestRediscovered:
    FOUND = (Endpoint("10.0.0.7:8000", "ns/pod-1"), Endpoint("10.0.0.8:8000", "ns/pod-2"))

    def addresses(self, models: Catalog, name: str) -> list[str]:
        return [endpoint.address for endpoint in models.models[name].snapshot.endpoints]

    def test_new_model_gets_the_known_endpoints(self) -> None:
        spec = by_service(adapters=["sql"])
        models = revise(Catalog(), [spec, QWEN], strategy_of, lambda source: self.FOUND)
        snapshot = models.models["llama"].snapshot
        assert [(e.address, e.name) for e in snapshot.endpoints] == [
            ("10.0.0.7:8000", "ns/pod-1"),
            ("10.0.0.8:8000", "ns/pod-2"),
        ]
        assert snapshot.eligible("sql") == snapshot.endpoints
        assert self.addresses(models, "qwen_2_5") == ["10.0.0.1:8000", "10.0.0.2:8000"]

    def test_reads_the_source_of_each_model(self) -> None:
        found = {"service ns/a": self.FOUND[:1], "service ns/b": self.FOUND[1:]}
        specs = [by_service("a", name="a"), by_service("b", name="b")]
        models = revise(Catalog(), specs, strategy_of, lambda source: found[str(source)])
        assert self.addresses(models, "a") == ["10.0.0.7:8000"]
        assert self.addresses(models, "b") == ["10.0.0.8:8000"]

    def test_changes_only_the_models_of_the_source(self) -> None:
        first, second = by_service("a", adapters=["sql"]), by_service("b")
        elsewhere = by_service("c", name="other")
        before = catalog(first, second, elsewhere, QWEN)
        assert first.source is not None
        after = before.rediscovered(first.source, self.FOUND)
        assert self.addresses(after, "a") == ["10.0.0.7:8000", "10.0.0.8:8000"]
        assert self.addresses(after, "b") == ["10.0.0.7:8000", "10.0.0.8:8000"]
        assert after.models["a"].snapshot.eligible("sql")
        assert not after.models["b"].snapshot.eligible("sql")
        for name in ("c", "qwen_2_5"):
            assert after.models[name] is before.models[name]
        assert all(after.models[name].strategy is before.models[name].strategy for name in "ab")
        assert self.addresses(before, "a") == []
        assert (after.names("law_v_2"), after.key_headers) == (True, before.key_headers)

    def test_unknown_source_changes_nothing(self) -> None:
        before = catalog(LLAMA)
        unknown = by_service().source
        assert unknown is not None
        assert before.rediscovered(unknown, self.FOUND).models == before.models


def test_ambiguous_name_is_a_configured_one_or_that_of_the_shorter_model() -> None:
    known = catalog(model_spec("a", adapters=["b", "b_c"]), model_spec("a_b", adapters=["c"]))
    found = {name: known.resolve(name) for name in ("a_b", "a_b_c")}
    assert {name: (model.spec.name, adapter) for name, (model, adapter) in found.items()} == {
        "a_b": ("a_b", ""),
        "a_b_c": ("a", "b_c"),
    }
