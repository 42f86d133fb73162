from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.core.conversation.listing import Listing
from extproc.core.fleet.context_lengths import ContextLengths
from extproc.core.request.refusals import ModelNotFound
from extproc.core.routing.catalog import Catalog
from tests.core.builders import catalog, model_spec, split_spec

LLAMA = model_spec(
    "llama",
    endpoints=["10.0.0.1:1", "10.0.0.2:1"],
    aliases=["meta-llama/Llama-3"],
    adapters=["sql-lora", "my_lora"],
)
QWEN = model_spec("qwen", endpoints=["10.0.1.1:1"])
CANARY = split_spec("canary", llama=2, qwen=1)
ALL = catalog(LLAMA, QWEN, CANARY)


def lengths(**by_last_digits: int) -> ContextLengths:
    """Return context lengths by endpoint: `x0_1=8` means 8 for 10.0.0.1:1."""
    found = ContextLengths()
    for digits, tokens in by_last_digits.items():
        found.set(f"10.0.{digits[1:].replace('_', '.')}:1", tokens)
    return found


def openai(known: ContextLengths | None = None, models: Catalog = ALL) -> Listing:
    return Listing(models, known or ContextLengths(), anthropic=False)


def anthropic(models: Catalog = ALL) -> Listing:
    return Listing(models, lengths(x0_1=8), anthropic=True)


def listed(listing: Listing) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(listing.all())["data"]
    return entries


class TestOpenAiShape:
    def test_lists_models_aliases_adapters_and_splits(self) -> None:
        assert json.loads(openai().all())["object"] == "list"
        assert [(entry["id"], entry.get("parent")) for entry in listed(openai())] == [
            ("llama", None),
            ("meta-llama/Llama-3", None),
            ("sql-lora", "llama"),
            ("my_lora", "llama"),
            ("qwen", None),
            ("canary", None),
        ]
        for entry in listed(openai()):
            assert entry["object"] == "model"
            assert isinstance(entry["created"], int)
            assert isinstance(entry["owned_by"], str)

    def test_returns_each_entry_alone(self) -> None:
        for entry in listed(openai()):
            assert json.loads(openai().one(entry["id"])) == entry

    def test_returns_a_usable_name_that_is_not_listed(self) -> None:
        entry = json.loads(openai().one("llama_my_lora"))
        assert (entry["id"], entry["parent"]) == ("llama_my_lora", "llama")

    @pytest.mark.parametrize("name", ["gpt", "meta-llama", "Llama-3", "llama/", " "])
    def test_raises_for_other_names(self, name: str) -> None:
        with pytest.raises(ModelNotFound, match="canary, llama, meta-llama/Llama-3"):
            openai().one(name)

    def test_is_empty_without_models(self) -> None:
        assert listed(openai(models=Catalog())) == []


class TestContextLength:
    def test_is_missing_if_unknown(self) -> None:
        assert all("max_model_len" not in entry for entry in listed(openai()))

    def test_is_the_shortest_of_the_endpoints(self) -> None:
        known = lengths(x0_1=8192, x0_2=4096, x1_1=100, x9_9=1)
        found = {entry["id"]: entry["max_model_len"] for entry in listed(openai(known))}
        assert found == {
            "llama": 4096,
            "meta-llama/Llama-3": 4096,
            "sql-lora": 4096,
            "my_lora": 4096,
            "qwen": 100,
            "canary": 100,
        }

    def test_is_that_of_the_known_endpoints(self) -> None:
        assert json.loads(openai(lengths(x0_2=4096)).one("llama"))["max_model_len"] == 4096

    def test_of_a_split_needs_all_targets(self) -> None:
        assert "max_model_len" not in json.loads(openai(lengths(x0_1=8)).one("canary"))

    def test_is_forgotten_with_its_endpoint(self) -> None:
        known = lengths(x0_1=8, x0_2=4)
        known.keep_only(["10.0.0.1:1"])
        assert json.loads(openai(known).one("llama"))["max_model_len"] == 8
        known.set("10.0.0.1:1", None)
        assert "max_model_len" not in json.loads(openai(known).one("llama"))


class TestAnthropicShape:
    def test_is_one_page(self) -> None:
        page = json.loads(anthropic().all())
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("llama", "canary", False)
        assert [entry["id"] for entry in page["data"]] == list(ALL.names_in_order())
        for entry in page["data"]:
            assert set(entry) == {"type", "id", "display_name", "created_at"}
            assert entry["type"] == "model"

    def test_returns_one_model(self) -> None:
        entry = json.loads(anthropic().one("meta-llama/Llama-3"))
        assert (entry["type"], entry["id"]) == ("model", "meta-llama/Llama-3")

    def test_is_empty_without_models(self) -> None:
        page = json.loads(anthropic(Catalog()).all())
        assert page == {"data": [], "has_more": False, "first_id": None, "last_id": None}
