"""Parses a YAML text into nodes that know their positions, and writes values as YAML.

The text is edited in place, so everything that an edit does not touch keeps its bytes. PyYAML's
events carry exact marks for scalars, aliases and brackets. A block collection ends where its last
value ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from extproc.envoy.nodes import Alias, Mapping, Node, Scalar, Sequence

_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


class YamlError(ValueError):
    """An error in a text that is not one YAML document. The message has the line."""


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@lru_cache(maxsize=8)
def parse(text: str) -> Node:
    """Return the document's root, which must not be changed. Raises YamlError."""
    try:
        return _Builder(text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from None
    except RecursionError:
        raise YamlError("the document is nested too deeply") from None


def inline(value: Any) -> str:
    """Return a value as JSON on one line, which is YAML too."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def scalar(text: str) -> str:
    """Return a text as a YAML value on one line, with quotes if it needs them."""
    plain = re.fullmatch(r"[\w./][\w./-]*", text, re.ASCII) is not None
    return text if plain and parse(text).data() == text else inline(text)


class _Builder:
    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, Node] = {}

    def document(self) -> Node:
        event = self._skip(yaml.StreamStartEvent, yaml.DocumentStartEvent)
        if isinstance(event, yaml.StreamEndEvent):
            raise YamlError("the document is empty")
        root = self._node(event)
        if not isinstance(self._skip(yaml.DocumentEndEvent), yaml.StreamEndEvent):
            raise YamlError("the file holds more than one YAML document")
        return root

    def _skip(self, *kinds: type[yaml.Event]) -> Any:
        event = next(self._events)
        while isinstance(event, kinds):
            event = next(self._events)
        return event

    def _node(self, event: Any) -> Node:
        start, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise YamlError(f"line {start.line + 1}: undefined alias *{event.anchor}")
            return Alias(start.index, end.index, start.line + 1, to=self._anchors[event.anchor])
        place = (start.index, end.index, start.line + 1, event.anchor)
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = Scalar(*place, event.value, event.implicit[0])
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(Sequence(*place, flow=bool(event.flow_style)))
        else:
            node = self._mapping(Mapping(*place, flow=bool(event.flow_style)))
        if node.anchor is not None:
            self._anchors[node.anchor] = node
        return node

    def _sequence(self, node: Sequence) -> Sequence:
        event = next(self._events)
        while not isinstance(event, yaml.SequenceEndEvent):
            node.items.append(self._node(event))
            event = next(self._events)
        node.end = _after(event) if node.flow else _end(node.items, node)
        return node

    def _mapping(self, node: Mapping) -> Mapping:
        event = next(self._events)
        while not isinstance(event, yaml.MappingEndEvent):
            key = self._node(event)
            node.entries.append((key, self._node(next(self._events))))
            event = next(self._events)
        last = [value for _, value in node.entries[-1:]]
        node.end = _after(event) if node.flow else _end(last, node)
        return node


def _end(items: list[Node], node: Node) -> int:
    return items[-1].end if items else node.end


def _after(event: Any) -> int:
    index: int = event.end_mark.index
    return index
