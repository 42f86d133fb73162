"""Label and field selectors of the Kubernetes API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from extproc.lab.api_server.errors import bad_request

FIELDS = ("metadata.name", "metadata.namespace")
"""Fields of all resources; a real server supports more fields for some."""

_KEY = r"(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)"
_EXISTS = re.compile(rf"(?P<not>!?)\s*{_KEY}")
_EQUALS = re.compile(rf"{_KEY}\s*(?P<operator>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)")
_IN = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[-A-Za-z0-9_.,\s]*)\)")
_COMMA = re.compile(r",(?![^(]*\))")
"""A comma outside parentheses."""


@dataclass(frozen=True)
class Requirement:
    """One part of a selector."""

    key: str
    values: frozenset[str] | None
    """Values to compare with; None for any value."""

    wanted: bool
    """False to match objects that have none of the values, or no such key."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if labels meet the requirement."""
        if self.values is None:
            return (self.key in labels) == self.wanted
        return (labels.get(self.key) in self.values) == self.wanted


Selector = tuple[Requirement, ...]
"""Requirements that an object must all meet."""


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return True if labels meet every requirement."""
    return all(requirement.matches(labels) for requirement in selector)


def label_selector(text: str) -> Selector:
    """Parse a `labelSelector`. Raises ApiError 400."""
    return tuple(_label(part.strip()) for part in _COMMA.split(text)) if text.strip() else ()


def field_selector(text: str) -> Selector:
    """Parse a `fieldSelector`. Raises ApiError 400, also for unsupported fields."""
    selector = tuple(_equality(part.strip()) for part in text.split(",")) if text.strip() else ()
    for requirement in selector:
        if requirement.key not in FIELDS:
            raise bad_request(f"field label not supported: {requirement.key}")
    return selector


def exact(selector: Selector, key: str) -> str:
    """Return the only value that a selector allows for a key; empty if it allows several."""
    for requirement in selector:
        if requirement.key == key and requirement.wanted and requirement.values:
            return next(iter(requirement.values))
    return ""


def _label(text: str) -> Requirement:
    if found := _EXISTS.fullmatch(text):
        return Requirement(found["key"], None, not found["not"])
    if found := _IN.fullmatch(text):
        values = frozenset(value.strip() for value in found["values"].split(","))
        return Requirement(found["key"], values, found["operator"] == "in")
    return _equality(text)


def _equality(text: str) -> Requirement:
    found = _EQUALS.fullmatch(text)
    if not found:
        raise bad_request(f"unable to parse requirement: {text!r}")
    return Requirement(found["key"], frozenset([found["value"]]), found["operator"] != "!=")
