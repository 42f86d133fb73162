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

UNSYNCHRONIZED = "unsynchronized"
"""Second part of a name: this oracle does not know when the present steps end."""


def names() -> tuple[str, ...]:
    """Return the names of the strategies: `Oracle`, and two with each rule."""
    each = (f"{NAME}:{rule}" for rule in RULE_NAMES)
    return (NAME, *(name for one in each for name in (one, f"{one}:{UNSYNCHRONIZED}")))


def rule_of(name: str) -> str:
    """Return the rule of a strategy's name; empty if it is none of the oracle's."""
    if name not in names():
        return ""
    return name.removesuffix(f":{UNSYNCHRONIZED}").partition(":")[2] or USUAL


def knows_steps(name: str) -> bool:
    """Return True if an oracle with this name knows when the present steps end."""
    return not name.endswith(f":{UNSYNCHRONIZED}")
