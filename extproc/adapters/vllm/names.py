"""The names that endpoints give adapters, within bounds: they become keys of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from extproc.core.spec import LONGEST_NAME

MOST_ADAPTERS = 1000
"""Of one endpoint; further ones are passed over."""


def adapters_named(names: Iterable[object]) -> frozenset[str]:
    """Those of these names that an adapter can have."""
    usable = (n for n in names if isinstance(n, str) and 0 < len(n) <= LONGEST_NAME)
    return frozenset(islice(usable, MOST_ADAPTERS))
