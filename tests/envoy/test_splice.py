"""Edits of a YAML text at the positions of its nodes."""

from __future__ import annotations

import pytest

from extproc.envoy.nodes import Mapping, Sequence
from extproc.envoy.splice import replace_items
from extproc.envoy.tree import parse


@pytest.mark.parametrize(
    ("block", "left"),
    [("", "[2]"), ("- 8\n", "[8, 2]"), ("- 8\n- 9\n", "[8, 9, 2]")],
    ids=["none", "one", "two"],
)
def test_items_in_brackets_are_replaced(block: str, left: str) -> None:
    text = "a: [1, 2, 3]\n"
    root = parse(text)
    assert isinstance(root, Mapping)
    items = root.get("a")
    assert isinstance(items, Sequence)
    assert replace_items(text, items, [2, 0], block) == f"a: {left}\n"
