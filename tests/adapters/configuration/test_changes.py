from __future__ import annotations

import pytest

from extproc.adapters.configuration.changes import LONGEST, changes
from extproc.adapters.configuration.document import parse
from extproc.core.schema import ModelsSpec

LLAMA = "{name: llama, endpoints: ['10.0.0.1:80', '10.0.0.2:80']}"
QWEN = "{name: qwen, endpoints: ['10.0.1.1:80']}"


def document(*models: str) -> ModelsSpec:
    return parse(f"models: [{', '.join(models)}]".encode())


def llama(more: str = "", endpoints: str = "['10.0.0.1:80', '10.0.0.2:80']") -> ModelsSpec:
    return document(f"{{name: llama, endpoints: {endpoints}{more}}}")


def test_first_document_adds_all_its_models() -> None:
    assert changes(None, document(LLAMA, QWEN)) == {"added": "llama, qwen"}


def test_models_are_added_and_removed_by_name() -> None:
    assert changes(document(LLAMA), document(QWEN)) == {"added": "qwen", "removed": "llama"}


def test_equal_document_has_no_changes() -> None:
    before = llama()
    assert before.models[0].source is None  # which is computed once, and kept
    assert changes(before, llama()) == {}


def test_new_order_of_models_is_a_change() -> None:
    after = changes(document(LLAMA, QWEN), document(QWEN, LLAMA))
    assert after == {"changed": "the order of the models"}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (
            llama(),
            llama(", loadBalancing: {strategy: LeastLoad}", "['10.0.0.1:80', '10.0.0.3:80']"),
            "endpoints +1 -1, loadBalancing.strategy PrefixHash -> LeastLoad",
        ),
        (llama(), llama(endpoints="[]"), "endpoints -2"),
        (llama(), llama(endpoints="['10.0.0.2:80', '10.0.0.1:80']"), "endpoints in another order"),
        (llama(), llama(", aliases: [a, b]"), "aliases +2"),
        (llama(), llama(", discoverAdapters: true"), "discoverAdapters added"),
        (
            llama(", loadBalancing: {prefixHash: {meanLoadFactor: 150}}"),
            llama(),
            "loadBalancing.prefixHash.meanLoadFactor 150 -> 125",
        ),
        (
            llama(),
            document("{name: llama, service: {namespace: n, name: s, port: http}}"),
            "endpoints removed, service added",
        ),
        (
            document("{name: llama, service: {namespace: n, name: s, port: http}}"),
            document("{name: llama, service: {namespace: n, name: s, port: 8000}}"),
            "service.port http -> 8000",
        ),
        (
            llama(", loadBalancing: {strategy: Chain, chain: [{filter: LowLatency}]}"),
            llama(", loadBalancing: {strategy: Chain, chain: [{filter: LeastQueue}]}"),
            "loadBalancing.chain +1 -1",
        ),
        (
            llama(f", servedName: {'x' * 100}"),
            llama(", servedName: y"),
            f"servedName {'x' * 57}... -> y",
        ),
    ],
)
def test_names_the_keys_that_differ(before: ModelsSpec, after: ModelsSpec, changed: str) -> None:
    assert changes(before, after) == {"changed": f"llama: {changed}"}


def test_names_weights_of_a_split_by_target() -> None:
    split = "{name: all, split: {targets: [%s]}}"
    one = "{model: llama, weight: %d}"
    before = document(LLAMA, QWEN, split % (one % 90 + ", {model: qwen, weight: 10}"))
    after = document(LLAMA, QWEN, split % (one % 100))
    assert changes(before, after) == {
        "changed": "all: split.targets.llama.weight 90 -> 100, split.targets.qwen removed"
    }


def test_lists_each_changed_model() -> None:
    other = QWEN.replace("}", ", aliases: [q]}")
    after = document(LLAMA.replace("}", ", aliases: [l]}"), other)
    assert changes(document(LLAMA, QWEN), after) == {
        "changed": "llama: aliases +1; qwen: aliases +1"
    }


def test_cuts_long_list_and_counts_the_rest() -> None:
    models = [f"{{name: model-{i:04}, endpoints: []}}" for i in range(500)]
    (text,) = changes(None, document(*models)).values()
    assert len(text) < LONGEST + 30
    listed, _, more = text.rpartition(", and ")
    assert listed.count("model-") + int(more.removesuffix(" more")) == 500
