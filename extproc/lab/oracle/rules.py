"""The rules of the oracle: each returns a cost for each engine, and the least cost decides.

The oracle of a workload is the best of its rules there. No rule is the best everywhere, because the
requests that come later decide what a request costs others. The weights are assumptions: a delayed
token delays no first token, and the engine may lose a block anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from extproc.lab.oracle.outlook import Outlook

Cost = tuple[float, ...]
"""The first number decides, the next ones break ties."""

_DELAY = 0.25
"""Weight of the delay of the other requests."""

_SLIGHT_DELAY = 0.05
"""Weight of that delay in the rule `balanced`."""

_EVICTION = 0.5
"""Weight of the time to compute evicted blocks again."""

_WARM = 0.80
_SATURATED_SECONDS = 18.0
"""Constants of the published rule `Sticky`."""


def soonest(engines: Sequence[Outlook]) -> list[Cost]:
    """Return the request's own time to first token."""
    return [(one.wait,) for one in engines]


def sparing(engines: Sequence[Outlook]) -> list[Cost]:
    """Add the delay of the other requests by its prompt, and the evicted blocks that are needed."""
    return [
        (one.wait + _DELAY * one.prefill * one.requests + _EVICTION * one.evicted,)
        for one in engines
    ]


def investing(engines: Sequence[Outlook]) -> list[Cost]:
    """Add that delay, but do not count the computation of a copy that later requests share."""
    return [
        (one.wait - one.invested + _DELAY * (one.prefill - one.invested) * one.requests,)
        for one in engines
    ]


def thrifty(engines: Sequence[Outlook]) -> list[Cost]:
    """Add the evicted blocks to the time to first token, and do not count shared copies."""
    return [(one.wait - one.invested + _EVICTION * one.evicted,) for one in engines]


def balanced(engines: Sequence[Outlook]) -> list[Cost]:
    """Add a little of the delay to that."""
    return [
        (
            one.wait
            - one.invested
            + _SLIGHT_DELAY * (one.prefill - one.invested) * one.requests
            + _EVICTION * one.evicted,
        )
        for one in engines
    ]


def foresighted(engines: Sequence[Outlook]) -> list[Cost]:
    """Count all: delay by prompt and context, evicted blocks, and shared copies as free."""
    return [
        (
            one.wait
            - one.invested
            + (_DELAY * (one.prefill - one.invested) + one.attention) * one.requests
            + _EVICTION * one.evicted,
        )
        for one in engines
    ]


def product(engines: Sequence[Outlook]) -> list[Cost]:
    """Return the cost of the published rule `LMetric` with the true state."""
    return [((one.backlog + one.prefill) * (one.requests + 1),) for one in engines]


def sticky(engines: Sequence[Outlook]) -> list[Cost]:
    """Return the cost of the published rule `Sticky` with the true state."""
    warm = [one for one in engines if one.warmth >= _WARM]
    cold = [one for one in engines if one.warmth < _WARM]
    stays = bool(warm)
    if warm and cold:
        excess = min(one.backlog for one in warm) - min(one.backlog for one in cold)
        stays = excess <= _SATURATED_SECONDS
    return [(float(stays and one.warmth < _WARM), one.backlog + one.prefill) for one in engines]


RULES: Mapping[str, Callable[[Sequence[Outlook]], list[Cost]]] = {
    one.__name__: one
    for one in (soonest, sparing, investing, thrifty, balanced, foresighted, product, sticky)
}
"""All rules by name."""
