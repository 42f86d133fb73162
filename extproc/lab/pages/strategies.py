"""The reference of strategies, chain filters and prefix sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import cast, get_args

from extproc.adapters.configuration.docstrings import one_line
from extproc.core.fleet.signals import Signals
from extproc.core.schema import (
    DEFAULT_SESSION_SOURCES,
    PREFIX_SOURCES,
    FilterName,
    LoadBalancingSpec,
    StrategyName,
)
from extproc.core.strategies import build
from extproc.core.strategies.presets import PRESETS, filter_of
from extproc.lab.pages.docstrings import Undocumented
from extproc.lab.pages.lines import heading, table


def strategies() -> Iterator[str]:
    """Return the lines of the section."""
    yield from heading("Strategies")
    yield "The values of `strategy`:"
    rows = [(f"`{name}`", strategy_in_words(name)) for name in get_args(StrategyName)]
    yield from table(("strategy", "choice"), rows)
    yield ""
    yield "The values of `filter` in a chain:"
    filters = [(f"`{name}`", _filter_in_words(name)) for name in get_args(FilterName)]
    yield from table(("filter", "endpoints that it keeps"), filters)
    yield ""
    yield "`PrefixHash` hashes a key of each request. The values of `prefixSource` choose the key:"
    rows = [(f"`{name}`", meaning) for name, meaning in PREFIX_SOURCES.items()]
    yield from table(("source", "the key"), rows)
    yield ""
    yield "`Session` searches these places for a session id, unless `sessionSources` lists others:"
    yield ""
    yield from (f"{place}. `{source}`" for place, source in enumerate(DEFAULT_SESSION_SOURCES, 1))


def strategy_in_words(name: str) -> str:
    """Return the beginning of the strategy's module docstring, without the name.

    Raises Undocumented.
    """
    preset = PRESETS.get(cast("StrategyName", name))
    if preset is not None:
        return f"The chain {', '.join(f'`{one.filter}`' for one in preset)}."
    filters = [{"filter": "LeastQueue"}] if name == "Chain" else []
    chosen = LoadBalancingSpec.model_validate({"strategy": name, "chain": filters})
    module = sys.modules[type(build(chosen, Random(), Signals(lambda: 0.0))).__module__]
    start, colon, rest = (module.__doc__ or "").partition(":")
    if start != name or not colon:
        raise Undocumented(f"the docstring of {module.__name__} does not begin with '{name}:'")
    words = one_line(" ".join(rest.split("\n\n")[:2]))
    return words[:1].upper() + words[1:]


def _filter_in_words(name: FilterName) -> str:
    spec = LoadBalancingSpec.model_validate({"strategy": "Chain", "chain": [{"filter": name}]})
    built = filter_of(spec.chain[0], spec, Signals(lambda: 0.0), Random())
    return one_line((type(built).__doc__ or "").replace("\n\n", " "))
