"""The tokens that a further copy of a prefix saves later, for PrefixCache's costs.

`extproc.core.fleet.copies` has the rates that this depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.fleet.totals import Total
from extproc.core.fleet.weights import Weights

_MORE_TOKENS = 1.3
"""Least tokens to compute and to generate on an endpoint without the prefix, as a multiple of those
on one that has it. So if all are idle, a request goes where its prefix is."""

_UNPROVEN = 5.0
"""Most uses of a further copy that are expected without proof, as a multiple of those that make
half of its tokens count as saved. A dozen sessions behind one system prompt need copies early."""

_DEAR_TOKENS = 30_000.0
"""Tokens of a prefix of which one such multiple is expected without proof; fewer uses of a longer
prefix are, because a copy that is not used costs more."""

_BEHIND = 0.5
"""Share of a prefix's own computation that each endpoint with the prefix has to compute first, from
which a further copy counts fully on an idle endpoint: the request would wait about as long for an
old copy, and delays no other there."""


class Copied(NamedTuple):
    """The value of a further copy of a prefix for later requests."""

    tokens: float = 0.0
    """Tokens of the request's prompt that the copy would save later."""

    soon: float = inf
    """Backlog above which an endpoint would have the copy later than an old copy could be used."""

    idle: float = 0.0
    """These tokens on an endpoint without requests, if its cache has room."""


NOTHING = Copied()


class PrefixCopies:
    """Values of further copies of prefixes on the endpoints of one model."""

    def __init__(self, signals: Signals, weights: Weights) -> None:
        self._signals = signals
        self._weights = weights
        self._totals: list[Total] = []
        self._kept_seconds = 0.0

    def use(self, totals: list[Total]) -> None:
        """Set the endpoints by their loads. Their positions stand for them from now on."""
        self._totals = totals

    def refresh(self, addresses: Sequence[str]) -> None:
        """Update how long the caches of the endpoints keep what they compute."""
        self._kept_seconds = self._signals.copies.kept_seconds(addresses)

    def savings(self, tokens: float, saved: dict[int, float], prefix: int, shared: float) -> Copied:
        """Return what a further copy of a prompt's prefix would save later.

        `prefix` is the hash of its last block, and `shared` are its tokens. The more requests will
        use a copy, the less of it the first one pays. Each use saves what prompts in flight cost
        more on endpoints with the prefix than on others. A further copy is needed only if the
        requests in flight with the prefix would fill the endpoints that have it to the mean load.

        Many uses need proof. If all endpoints with the prefix have much to do before the request, a
        copy is useful only where it is ready about as soon. On an idle endpoint it then needs none.
        """
        sharing = self._signals.contexts.sharing(prefix)
        if not sharing:
            return NOTHING
        holders = [position for position, known in saved.items() if known >= shared]
        copies = len(holders)
        if not copies or copies > sharing or copies == len(self._totals):
            return NOTHING
        ahead = min([self._totals[position].backlog for position in holders]) - _BEHIND * shared
        filled = sharing / (copies * self._mean_known())
        if filled < 1 and ahead < 0:
            return NOTHING
        relieved = self._weights.copies * min(self._more_context(holders) / shared, 1.0)
        rate = relieved * self._signals.copies.demand(prefix) / (copies + 1)
        proven = rate * self._signals.copies.used_seconds(prefix)
        unproven = min(_UNPROVEN, _DEAR_TOKENS / shared)
        uses = min(rate * self._kept_seconds, max(proven, unproven))
        work = tokens + self._weights.answer
        most = max(0.0, work - _MORE_TOKENS * (work - shared))
        later = uses**2 / (uses**2 + 1) * most * min(filled, 1.0)
        return Copied(later, ahead, most) if uses and ahead >= 0 else Copied(later)

    def _mean_known(self) -> float:
        """Return the mean of the known requests in flight on an endpoint, at least 1."""
        together = 0.0
        for one in self._totals:
            together += one.known_requests
        return max(together / len(self._totals), 1.0)

    def _more_context(self, holders: Sequence[int]) -> float:
        """Return by how much the prompts in flight count more on these endpoints than on others.

        This is the difference of the means, in tokens to compute; at least 0.
        """
        here = sum([self._totals[position].context for position in holders])
        together = sum([one.context for one in self._totals])
        number = len(holders)
        more = here / number - (together - here) / (len(self._totals) - number)
        return self._weights.context * max(0.0, more)
