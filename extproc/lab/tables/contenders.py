"""Contenders of the page on prefix caches: this product's strategies and published rules."""

from __future__ import annotations

from typing import Any, NamedTuple

from extproc.core.schema import LoadBalancingSpec
from extproc.lab import oracle, published_rules
from extproc.lab.simulation.sidecars import SESSION_HEADER

CHARACTERS = 4_000
"""Length of the keys that include more than the first user message: about a thousand tokens."""

OURS = "PrefixCache"
YARDSTICK = "PrefixHash"
"""PrefixHash by the first 100 characters of the first user message: KubeAI's, and the default."""


class Contender(NamedTuple):
    """The configuration of a contender."""

    load_balancing: LoadBalancingSpec
    published_rule: str = ""


def _prefix_hash(source: str) -> Contender:
    keys = {"prefixSource": source, "prefixCharLength": CHARACTERS}
    return _of(strategy="PrefixHash", prefixHash=keys)


def _of(**keys: Any) -> Contender:
    return Contender(LoadBalancingSpec.model_validate(keys))


CONTENDERS = {
    **{name: _of(strategy=name) for name in ("Random", "LeastLoad", YARDSTICK)},
    "PrefixHash, system prompt": _prefix_hash("SystemAndFirstUserMessage"),
    "PrefixHash, prompt head": _prefix_hash("PromptHead"),
    "PrefixHash, session": _prefix_hash(f"Header:{SESSION_HEADER}"),
    **{name: Contender(LoadBalancingSpec(), name) for name in published_rules.names()},
    OURS: _of(strategy=OURS),
}
"""Contenders by the names of their rows."""

ORACLES = {
    f"{oracle.NAME}:{rule}": Contender(LoadBalancingSpec(), f"{oracle.NAME}:{rule}")
    for rule in ("soonest", "thrifty", "investing", "balanced")
}
"""The oracle with the rules that are the best ones most often."""

UNSYNCHRONIZED = {
    name: Contender(LoadBalancingSpec(), name)
    for name in (f"{one}:{oracle.UNSYNCHRONIZED}" for one in ORACLES)
}
"""The same rules without the ends of the present steps, which a sidecar does not see."""

AGAINST_ADVERSARIES = ("LeastLoad", YARDSTICK, OURS, *published_rules.names())

WITH_LONG_PREFIXES = (YARDSTICK, *published_rules.names(), OURS)
