"""A YAML document whose values know their place in the text.

The text is edited in place, so everything that an edit does not touch keeps its bytes. PyYAML's
events carry exact marks for scalars, aliases and brackets. A block collection ends where its last
value ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

_MERGE = "<<"
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


class YamlError(ValueError):
    """The text is not one YAML document. The message has the line."""


@dataclass(eq=False)
class Node:
    """A value in the text: offsets of its first character and after its last, line from 1."""

    start: int
    end: int
    line: int
    anchor: str | None = None

    @property
    def target(self) -> Node:
        """The value that an alias refers to; any other value itself."""
        return self

    def get(self, key: str) -> Node | None:
        """Return the value of a mapping's key, also where the key is written in camel case."""
        return None

    def at(self, path: str) -> Node | None:
        """Return the value at a path of keys, such as `route.retry_policy`."""
        found: Node | None = self
        for key in path.split("."):
            found = found.get(key) if found is not None else None
        return found

    def list(self, path: str) -> list[Node]:
        """Return the items of the sequence at a path; none where there is no sequence."""
        found = self.at(path)
        return [item.target for item in found.items] if isinstance(found, Sequence) else []

    def entries_at(self, path: str) -> dict[str, Node]:
        """Return the entries of the mapping at a path; none where there is no mapping."""
        found = self.at(path)
        return found.values() if isinstance(found, Mapping) else {}

    def text(self, path: str) -> str:
        """Return the scalar at a path as it is written, without quotes; "" where there is none."""
        found = self.at(path)
        return found.value if isinstance(found, Scalar) else ""

    def data(self) -> Any:
        """Return the value in plain Python types."""
        raise NotImplementedError


@dataclass(eq=False)
class Scalar(Node):
    value: str = ""
    plain: bool = True

    def data(self) -> Any:
        if not self.plain:
            return self.value
        tag = _RESOLVER.resolve(yaml.ScalarNode, self.value, (True, False))
        node = yaml.ScalarNode(tag, self.value)
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, yaml.YAMLError):
            return self.value


@dataclass(eq=False)
class Sequence(Node):
    items: list[Node] = field(default_factory=list)
    flow: bool = False

    def data(self) -> list[Any]:
        return [item.data() for item in self.items]


@dataclass(eq=False)
class Mapping(Node):
    entries: list[tuple[Node, Node]] = field(default_factory=list)
    flow: bool = False

    def get(self, key: str) -> Node | None:
        values = self.values()
        return values.get(key) or values.get(_camel(key))

    def key(self, key: str) -> Node | None:
        """Return the key itself, where the mapping spells it out."""
        names = (key, _camel(key))
        return next(
            (k for k, _ in self.entries if isinstance(k, Scalar) and k.value in names), None
        )

    def values(self) -> dict[str, Node]:
        """Return the values by key, those of merge keys (`<<`) included."""
        found: dict[str, Node] = {}
        for key, value in self.entries:
            if isinstance(key, Scalar) and key.value == _MERGE:
                for merged in _merged(value.target):
                    found = {**merged.values(), **found}
        own = {k.value: v.target for k, v in self.entries if isinstance(k, Scalar)}
        own.pop(_MERGE, None)
        return {**found, **own}

    def data(self) -> dict[str, Any]:
        return {key: value.data() for key, value in self.values().items()}


@dataclass(eq=False)
class Alias(Node):
    to: Node = field(default_factory=lambda: Scalar(0, 0, 0))

    @property
    def target(self) -> Node:
        return self.to

    def get(self, key: str) -> Node | None:
        return self.to.get(key)

    def data(self) -> Any:
        return self.to.data()


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()


def _merged(value: Node) -> Iterator[Mapping]:
    for one in [item.target for item in value.items] if isinstance(value, Sequence) else [value]:
        if isinstance(one, Mapping):
            yield one


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.title() for word in rest)


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
    """Return a text as a YAML value on one line, with quotes where it needs them."""
    plain = re.fullmatch(r"[\w./][\w./-]*", text, re.ASCII) is not None
    return text if plain and parse(text).data() == text else inline(text)


def walk(node: Node) -> Iterator[Node]:
    """Yield a value and all values in it; what an alias refers to, only where it stands."""
    yield node
    below: list[Node] = []
    if isinstance(node, Sequence):
        below = node.items
    elif isinstance(node, Mapping):
        below = [value for _, value in node.entries]
    for one in below:
        yield from walk(one)


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
