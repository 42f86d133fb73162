"""An oracle that knows the true state of all simulated engines, to show what is possible.

A strategy of the product learns about engines from its own requests and from metrics. The oracle
examines the engines: their caches, their speeds, their queues and the remaining tokens of their
batches. It predicts the time to first token on each engine by playing its queue forward, adds what
the request costs others, and chooses the least. It looks one request ahead, so it is no
optimum: in some workloads a published rule is a few percent ahead.
"""

from __future__ import annotations

NAME = "Oracle"
"""Name of the strategy with its usual rule."""

RULE_NAMES = (
    *("soonest", "sparing", "investing", "thrifty"),
    *("balanced", "foresighted", "product", "sticky"),
)
"""Names of the rules; see `extproc.lab.oracle.rules`."""

USUAL = "thrifty"
"""The rule without a name."""


def names() -> tuple[str, ...]:
    """Return the names of the strategies: `Oracle`, and one with each rule."""
    return (NAME, *(f"{NAME}:{rule}" for rule in RULE_NAMES))


def rule_of(name: str) -> str:
    """Return the rule of a strategy's name; empty if it is none of the oracle's."""
    if name not in names():
        return ""
    return name.partition(":")[2] or USUAL
