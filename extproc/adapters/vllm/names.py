"""Names of adapters from endpoints, within limits, because they become keys of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeGuard

from extproc.core.schema import MAX_NAME_LENGTH, plain_name

MOST_ADAPTERS = 1000
"""Limit for one endpoint; further adapters are ignored."""


def usable_adapter_names(names: Iterable[object]) -> frozenset[str]:
    """Return the names that an adapter can have."""
    return frozenset(islice((n for n in names if _is_usable(n)), MOST_ADAPTERS))


def _is_usable(name: object) -> TypeGuard[str]:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        return False
    # The name appears unchanged in bodies, headers, lists and logs.
    try:
        plain_name(name)
    except ValueError:
        return False
    return True
