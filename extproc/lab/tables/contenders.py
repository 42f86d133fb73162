"""Who is compared on workloads for prefix caches: this product's strategies and published rules."""

from __future__ import annotations

from typing import Any, NamedTuple

from extproc.core.schema import LoadBalancingSpec
from extproc.lab import published_rules
from extproc.lab.simulation.sidecars import SESSION_HEADER

CHARACTERS = 4_000
"""Of those that hash more than the first message of the user: a thousand tokens."""

OURS = "PrefixCache"
YARDSTICK = "PrefixHash"
"""With the first 100 characters of the first message of the user: KubeAI's, and the default."""


class Contender(NamedTuple):
    """How one is configured."""

    load_balancing: LoadBalancingSpec
    published_rule: str = ""


def _prefix_hash(source: str) -> Contender:
    keys = {"prefixSource": source, "prefixCharLength": CHARACTERS}
    return _of(strategy="PrefixHash", prefixHash=keys)


def _of(**said: Any) -> Contender:
    return Contender(LoadBalancingSpec.model_validate(said))


CONTENDERS = {
    **{name: _of(strategy=name) for name in ("Random", "LeastLoad", YARDSTICK)},
    "PrefixHash, system prompt": _prefix_hash("SystemAndFirstUserMessage"),
    "PrefixHash, prompt head": _prefix_hash("PromptHead"),
    "PrefixHash, session": _prefix_hash(f"Header:{SESSION_HEADER}"),
    **{name: Contender(LoadBalancingSpec(), name) for name in published_rules.names()},
    OURS: _of(strategy=OURS),
}
"""By what their rows are called."""

AGAINST_ADVERSARIES = ("LeastLoad", YARDSTICK, OURS, *published_rules.names())
