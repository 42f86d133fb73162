from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.envoy import envoy_configurations
from extproc.envoy.nodes import Mapping, Scalar, walk
from extproc.envoy.tree import YamlError, parse, scalar

PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("path", envoy_configurations(), ids=lambda path: path.name)
def test_data_equals_that_of_a_yaml_library(path: Any) -> None:
    text = path.read_text()
    assert parse(text).data() == yaml.safe_load(text)


@given(PLAIN, st.booleans())
def test_any_document_equals_that_of_a_yaml_library(data: Any, flow: bool) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    assert parse(text).data() == yaml.safe_load(text)


def test_value_has_its_position_in_the_text() -> None:
    text = "a:\n- b: {c: d}\n- &x 'e f'\n- *x\n"
    places = [text[node.start : node.end] for node in walk(parse(text)) if not _is_block(node)]
    assert places == ["{c: d}", "d", "&x 'e f'", "*x"]


def _is_block(node: Any) -> bool:
    return not isinstance(node, Scalar) and getattr(node, "flow", True) is False


def test_block_ends_with_its_last_value() -> None:
    text = "a:\n  b:\n  - c # last\n\n# of d\nd: e\n"
    found = parse(text).get("a")
    assert found is not None
    assert text[found.start : found.end] == "b:\n  - c"


def test_merge_keys_and_aliases_are_resolved() -> None:
    root = parse("base: &base {a: 1, b: 2}\nmine: {<<: *base, b: 3}\nsame: *base\n")
    assert root.at("mine") is not None
    assert root.text("mine.a") == "1"
    assert root.text("mine.b") == "3"
    assert root.text("same.a") == "1"
    assert root.data()["mine"] == {"a": 1, "b": 3}


def test_quoted_merge_key_is_an_ordinary_key() -> None:
    assert parse('"<<": {a: 1}\n').data() == {"<<": {"a": 1}}
    assert parse("'<<':\n").data() == {"<<": None}


def test_keys_may_be_in_camel_case() -> None:
    root = parse('{"httpFilters": [1]}')
    assert isinstance(root, Mapping)
    assert [one.data() for one in root.list("http_filters")] == [1]


def test_missing_value_is_none() -> None:
    root = parse("a: {b: 1}")
    assert root.at("a.c.d") is None
    assert root.text("a.b.c") == ""
    assert root.list("a.b") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is empty"),
        ("a: [1\nb: 2\n", "line 2, column 2: "),
        ("a: 1\n---\nb: 2\n", "the file holds more than one YAML document"),
        ("a: *b\n", "line 1: undefined alias *b"),
        ("a: \x07\n", "not allowed"),
        ("[" * 5000, "nest"),  # the limit of libyaml, or of Python with an older libyaml
    ],
)
def test_invalid_document_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(YamlError) as refused:
        parse(text)
    assert message in str(refused.value)


@given(st.text(max_size=20))
def test_written_text_is_read_as_the_same_text(text: str) -> None:
    assert parse(f"a: {scalar(text)}\n").data() == {"a": text}


def test_names_and_addresses_need_no_quotes() -> None:
    for text in ("extproc", "127.0.0.1", "/run/extproc.sock", "vllm.inference"):
        assert scalar(text) == text
    assert scalar("true") == '"true"'
    assert scalar("::1") == '"::1"'
