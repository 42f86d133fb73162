"""Rules without a fleet."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from extproc.core.fleet.signals import Signals
from extproc.lab.published_rules.rule import Rule

AnyRule = TypeVar("AnyRule", bound=Rule)


def made(kind: type[AnyRule], **other: Any) -> AnyRule:
    """Return a rule that has not recorded any prompts."""
    return kind(Signals(lambda: 0.0), Random(0), **other)
