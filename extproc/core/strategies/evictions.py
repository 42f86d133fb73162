"""The evictions by full caches, and what is missed of them later, for PrefixCache's costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.core.fleet.signals import Signals

_LEAST_MISSED = 0.02
"""Share of evicted tokens that are missed, below which an eviction costs nothing."""

_MOST_MISSED = 0.9
"""Highest such share that is believed: then each evicted token costs nine others."""


def missed_tokens(signals: Signals, addresses: Sequence[str]) -> Iterator[tuple[int, float]]:
    """Yield the positions of full caches, and the tokens missed later for each evicted one.

    The least recently used blocks go first. In a full cache they are the history of the session
    that has been idle for the longest time, and its next turn may still come. To compute them again
    evicts as many others, of which the same share is missed, and so on: a geometric series.
    """
    for position, address in enumerate(addresses):
        age = signals.prefixes.age(address)
        if age is not None:
            missed = min(signals.contexts.continued_after(age), _MOST_MISSED)
            if missed >= _LEAST_MISSED:
                yield position, missed / (1 - missed)
