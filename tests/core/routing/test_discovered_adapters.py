"""Adapters found on endpoints, in addition to the configured ones."""

from __future__ import annotations

import json

import pytest

from extproc.core.conversation.listing import Listing
from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.catalog import Adapters, Catalog, revise
from extproc.core.schema import ModelSpec
from tests.core.builders import by_service, catalog, endpoint, model_spec, strategy_of

A, B = "10.0.0.1:8000", "10.0.0.2:8000"
LORA = model_spec("llama", adapters=["sql"], strategy="LoraQueue")
FOUND: Adapters = {A: frozenset({"law"}), B: frozenset({"law", "med"})}


def serving(models: Catalog, name: str) -> list[str]:
    """Return the eligible endpoints of a name."""
    model, adapter = models.resolve(name)
    return [e.address for e in model.snapshot.eligible(adapter)]


def test_found_adapters_are_names_on_their_endpoints() -> None:
    models = catalog(LORA).with_adapters(FOUND)
    assert serving(models, "law") == [A, B]
    assert serving(models, "med") == [B]
    assert serving(models, "llama_med") == [B]
    assert serving(models, "sql") == [A, B]


def test_found_adapters_are_listed_with_their_parent() -> None:
    listing = Listing(catalog(LORA).with_adapters(FOUND), ContextLengths(), anthropic=False)
    entries = json.loads(listing.all())["data"]
    parents = {entry["id"]: entry.get("parent") for entry in entries}
    assert parents == {"llama": None, "sql": "llama", "law": "llama", "med": "llama"}


def test_removed_adapters_are_unknown() -> None:
    models = catalog(LORA).with_adapters(FOUND).with_adapters({A: frozenset({"law"})})
    assert serving(models, "law") == [A]
    with pytest.raises(ModelNotFound):
        models.resolve("med")


def test_configured_names_take_precedence() -> None:
    other = model_spec("qwen", aliases=["q"], adapters=["tax"], strategy="LoraQueue")
    claims = frozenset({"qwen", "q", "tax", "llama"})
    models = catalog(LORA, other).with_adapters({A: claims, B: claims})
    resolved = {name: models.resolve(name) for name in claims}
    assert {name: (m.spec.name, adapter) for name, (m, adapter) in resolved.items()} == {
        "qwen": ("qwen", ""),
        "q": ("qwen", ""),
        "tax": ("qwen", "tax"),
        "llama": ("llama", ""),
    }


def test_configured_model_adapter_names_take_precedence() -> None:
    other = model_spec("qwen", endpoints=[B], strategy="LoraQueue")
    models = catalog(LORA, other).with_adapters({B: frozenset({"llama_sql"})})
    found, adapter = models.resolve("llama_sql")
    assert (found.spec.name, adapter) == ("llama", "sql")


def test_kubeais_form_separates_models_with_the_same_adapter() -> None:
    one = model_spec("one", endpoints=[A], strategy="LoraQueue")
    two = model_spec("two", endpoints=[B], strategy="LoraQueue")
    models = catalog(one, two).with_adapters(dict.fromkeys((A, B), frozenset({"law"})))
    assert serving(models, "one_law") == [A]
    assert serving(models, "two_law") == [B]


def test_shared_adapter_name_means_the_first_model() -> None:
    one = model_spec("one", endpoints=[A], strategy="LoraQueue")
    two = model_spec("two", endpoints=[B], strategy="LoraQueue")
    models = catalog(one, two).with_adapters(dict.fromkeys((A, B), frozenset({"law"})))
    assert serving(models, "law") == [A]


@pytest.mark.parametrize(
    ("strategy", "wanted", "found"),
    [
        ("LoraQueue", None, True),
        ("LoraQueue", False, False),
        ("PrefixHash", None, False),
        ("PrefixHash", True, True),
    ],
)
def test_adapters_are_read_with_signals_or_on_request(
    strategy: str, wanted: bool | None, found: bool
) -> None:
    plain = model_spec(strategy=strategy)
    spec = ModelSpec.model_validate(
        {**plain.model_dump(by_alias=True, exclude_unset=True), "discoverAdapters": wanted}
    )
    models = catalog(spec)
    assert models.models["llama"].discovers_adapters is found
    assert models.models["llama"].is_scraped is (found or strategy != "PrefixHash")
    assert models.with_adapters(FOUND).names("law") is found


def test_found_adapters_survive_changes() -> None:
    spec = by_service(strategy="LoraQueue")
    assert spec.source is not None
    models = revise(Catalog(), [spec], strategy_of, lambda _: [endpoint(A)]).with_adapters(FOUND)
    assert serving(models, "law") == [A]
    models = models.rediscovered(spec.source, [endpoint(A), endpoint(B)])
    assert serving(models, "med") == [B]
    models = models.rediscovered(spec.source, [endpoint(A)])
    assert not models.names("med")
    changed = by_service(strategy="LoraKVCache")
    models = revise(models, [changed], strategy_of, lambda _: [endpoint(B)])
    assert serving(models, "med") == [B]


def test_found_adapters_keep_the_strategy() -> None:
    before = catalog(LORA)
    after = before.with_adapters(FOUND)
    assert after.models["llama"].strategy is before.models["llama"].strategy
