"""The values of a YAML document, each with its position in the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_MERGE = "<<"
_RESOLVER: Any = yaml.resolver.Resolver()


@dataclass(eq=False)
class Node(ABC):
    """A value, with the offsets of its first character and after its last, and its line from 1."""

    start: int
    end: int
    line: int
    anchor: str | None = None

    @property
    def target(self) -> Node:
        """The value of an alias. Any other value is its own target."""
        return self

    def get(self, key: str) -> Node | None:
        """Return the value of a mapping's key, which may be written in camel case."""
        return None

    def at(self, path: str) -> Node | None:
        """Return the value at a path of keys, such as `route.retry_policy`."""
        found: Node | None = self
        for key in path.split("."):
            found = found.get(key) if found is not None else None
        return found

    def list(self, path: str) -> list[Node]:
        """Return the items of the sequence at a path, or none if there is no sequence."""
        found = self.at(path)
        return [item.target for item in found.items] if isinstance(found, Sequence) else []

    def entries_at(self, path: str) -> dict[str, Node]:
        """Return the entries of the mapping at a path, or none if there is no mapping."""
        found = self.at(path)
        return found.values() if isinstance(found, Mapping) else {}

    def text(self, path: str) -> str:
        """Return the scalar at a path as it is written, without quotes, or ""."""
        found = self.at(path)
        return found.value if isinstance(found, Scalar) else ""

    @abstractmethod
    def data(self) -> Any:
        """Return the value in plain Python types."""


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
        """Return the node of a key that is in the mapping itself, not in a merged one."""
        names = (key, _camel(key))
        return next(
            (k for k, _ in self.entries if isinstance(k, Scalar) and k.value in names), None
        )

    def values(self) -> dict[str, Node]:
        """Return the values by key, including those of merge keys (`<<`)."""
        found: dict[str, Node] = {}
        own: dict[str, Node] = {}
        for key, value in self.entries:
            if _is_merge(key):
                for merged in _merged(value.target):
                    found = {**merged.values(), **found}
            elif isinstance(key, Scalar):
                own[key.value] = value.target
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


def walk(node: Node) -> Iterator[Node]:
    """Yield a value and all values in it. Aliases are not followed."""
    yield node
    below: list[Node] = []
    if isinstance(node, Sequence):
        below = node.items
    elif isinstance(node, Mapping):
        below = [value for _, value in node.entries]
    for one in below:
        yield from walk(one)


def _is_merge(key: Node) -> bool:
    """Return True for a merge key. A quoted one is an ordinary key."""
    return isinstance(key, Scalar) and key.plain and key.value == _MERGE


def _merged(value: Node) -> Iterator[Mapping]:
    for one in [item.target for item in value.items] if isinstance(value, Sequence) else [value]:
        if isinstance(one, Mapping):
            yield one


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.title() for word in rest)
