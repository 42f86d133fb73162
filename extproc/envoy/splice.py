"""Edits a YAML text at the positions of its nodes.

Callers pass new text in block style at column 0, comments included: sequence items begin with `- `,
entries with their key. Inside brackets, the same values are written as JSON without comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from extproc.envoy.nodes import Alias, Mapping, Node, Sequence, walk
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.tree import inline, parse

_ANCHOR = re.compile(r"(?<![^\s\[{,])&([A-Za-z0-9_-]+)")
_OPENING = {"]": "[", "}": "{"}


def replace_value(text: str, node: Node, value: str) -> str:
    """Replace a value by text without a line break. An anchor of the value stays."""
    anchor = f"&{node.anchor} " if node.anchor else ""
    return text[: node.start] + anchor + value + text[node.end :]


def insert_items(text: str, sequence: Sequence, index: int, block: str) -> str:
    """Insert the items of `block` before the item at `index`, or after the last one."""
    if sequence.flow:
        places = [(item.start, item.end) for item in sequence.items]
        written = [inline(item) for item in parse(block).data()]
        return _insert_in_brackets(text, sequence, places, index, written)
    column = _column(text, _first_dash(text, sequence))
    if index < len(sequence.items):
        at = _above_comments(text, _dash(text, sequence, index), column)
    else:
        at = _next_line(text, sequence.end)
    return _insert_lines(text, at, block, column)


def replace_items(text: str, sequence: Sequence, indices: Iterable[int], block: str) -> str:
    """Replace items and the comments directly above them by the items of `block`, if it has any.

    The new items come where the first old one was.
    """
    gone = sorted(indices)
    if sequence.flow:
        kept: list[Any] = sequence.data()
        for index in reversed(gone):
            del kept[index]
        kept[gone[0] : gone[0]] = parse(block).data() if block else []
        return replace_value(text, sequence, inline(kept))
    text, sequence = _with_anchors_kept(text, sequence, gone)
    column = _column(text, _first_dash(text, sequence))
    for index in reversed(gone):
        start = _above_comments(text, _dash(text, sequence, index), column)
        end = _next_line(text, sequence.items[index].end)
        text = text[:start] + text[_below_comments(text, end, column) :]
        if index == gone[0] and block:
            text = _insert_lines(text, start, block, column)
    return text


def _with_anchors_kept(text: str, sequence: Sequence, gone: list[int]) -> tuple[str, Sequence]:
    """Move anchors of items that will be removed to their next use."""
    going = [(sequence.items[i].start, sequence.items[i].end) for i in gone]

    def goes(at: int) -> bool:
        return any(start <= at < end for start, end in going)

    first_use: dict[int, Alias] = {}
    for node in walk(parse(text)):
        if isinstance(node, Alias) and not goes(node.start) and goes(node.to.start):
            first_use.setdefault(node.to.start, node)
    for alias in sorted(first_use.values(), key=lambda one: -one.start):
        value = f"&{alias.to.anchor} {inline(alias.data())}"
        text = text[: alias.start] + value + text[alias.end :]
    same = (n for n in walk(parse(text)) if isinstance(n, Sequence) and n.start == sequence.start)
    return text, next(same)


def add_entries(text: str, mapping: Mapping, block: str, before: str = "") -> str:
    """Add entries to a mapping: before the key `before` if it exists, else at the end.

    An existing entry without a value is replaced. Raises ConfigurationError if it has a value.
    """
    text, mapping = _without_empty(text, mapping, list(parse(block).data()))
    if mapping.flow:
        pairs = [f"{inline(k)}: {inline(v)}" for k, v in parse(block).data().items()]
        places = [(key.start, value.end) for key, value in mapping.entries]
        return _insert_in_brackets(text, mapping, places, len(places), pairs)
    column = _column(text, mapping.entries[0][0].start)
    key = mapping.key(before) if before else None
    if key is None or not _begins_its_line(text, key.start):
        return _insert_lines(text, _next_line(text, mapping.end), block, column)
    return _insert_lines(text, _above_comments(text, key.start, column), block, column)


def _without_empty(text: str, mapping: Mapping, names: list[str]) -> tuple[str, Mapping]:
    for name in names:
        key = mapping.key(name)
        value = next((v for k, v in mapping.entries if k is key), None)
        if key is None or value is None:
            continue
        if value.data() is not None or len(mapping.entries) < 2:
            raise ConfigurationError(
                f"line {key.line}: {name} has an unexpected value: Envoy would refuse it"
            )
        if mapping.flow:
            after = re.match(r"\s*,?\s*", text[value.end :])
            text = text[: key.start] + text[value.end + (after.end() if after else 0) :]
        else:
            lines = lines_of_entry(text, mapping, name)
            at = text.rindex(lines, 0, _next_line(text, value.end))
            text = text[:at] + text[at + len(lines) :]
        same = (n for n in walk(parse(text)) if isinstance(n, Mapping) and n.start == mapping.start)
        mapping = next(same)
    return text, mapping


def indented(block: str, column: int) -> str:
    """Return the lines of `block`, indented. Empty lines stay empty."""
    lines = block.strip("\n").split("\n")
    return "".join(f"{' ' * column}{line}".rstrip() + "\n" for line in lines)


def with_fresh_anchors(block: str, text: str) -> str:
    """Return `block` with anchors that `text` lacks, because many parsers refuse duplicates."""
    taken = set(_ANCHOR.findall(text))
    for name in dict.fromkeys(_ANCHOR.findall(block)):
        fresh = next(one for one in _numbered(name) if one not in taken)
        block = re.sub(rf"([&*]){name}\b", rf"\1{fresh}", block)
    return block


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _insert_lines(text: str, at: int, block: str, column: int) -> str:
    block = with_fresh_anchors(block, text)
    before = text[:at]
    if before and not before.endswith("\n"):
        before += "\n"
    return before + indented(block, column) + text[at:]


def _insert_in_brackets(
    text: str, node: Node, parts: list[tuple[int, int]], index: int, written: list[str]
) -> str:
    """Insert `written` before the part at `index`. `parts` are offsets of the existing parts."""
    new = ", ".join(written)
    if not parts:
        close = node.end - 1
        opening = text.rindex(_OPENING[text[close]], 0, close)
        return text[: opening + 1] + new + text[close:]
    if index < len(parts):
        at = parts[index][0]
        return f"{text[:at]}{new}, {text[at:]}"
    at = parts[-1][1]
    return f"{text[:at]}, {new}{text[at:]}"


def _first_dash(text: str, sequence: Sequence) -> int:
    at = sequence.start
    while text[at] != "-":
        # There may be an anchor, a tag or a comment between the key and the first item.
        at = text.index("\n", at) if text[at] in "&!#" else at
        at += 1
    return at


def _dash(text: str, sequence: Sequence, index: int) -> int:
    """Return the offset of an item's dash."""
    first = _first_dash(text, sequence)
    if index == 0:
        return first
    line = "\n" + " " * _column(text, first) + "-"
    return text.rindex(line, 0, sequence.items[index].start) + len(line) - 1


def _column(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


def _begins_its_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


def _next_line(text: str, at: int) -> int:
    """Return the offset of the line after the last character before `at` that is not a space."""
    at = len(text[:at].rstrip())
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _above_comments(text: str, at: int, column: int) -> int:
    start = text.rfind("\n", 0, at) + 1
    while start:
        above = text.rfind("\n", 0, start - 1) + 1
        line = text[above : start - 1]
        if not (line.startswith(" " * column + "#")):
            break
        start = above
    return start


def lines_of_item(text: str, sequence: Sequence, index: int) -> str:
    """Return the lines of an item in block style, with the comments directly above it."""
    dash = _dash(text, sequence, index)
    start = _above_comments(text, dash, _column(text, dash))
    return text[start : _next_line(text, sequence.items[index].end)]


def lines_of_entry(text: str, mapping: Mapping, key: str) -> str:
    """Return the lines of an entry in block style, with the comments directly above it."""
    place, value = next((k, v) for k, v in mapping.entries if k is mapping.key(key))
    start = _above_comments(text, place.start, _column(text, place.start))
    return text[start : _next_line(text, value.end)]


def _below_comments(text: str, at: int, column: int) -> int:
    """Return the offset after the comments at `at` that are indented deeper than `column`."""
    deeper = re.compile(rf"(?:[ ]*\n)*[ ]{{{column + 1}}}[ ]*#.*\n?")
    while found := deeper.match(text, at):
        at = found.end()
    return at
