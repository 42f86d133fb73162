"""The oracle in the tables: its best rule of each scene, with the first seed.

The oracle may also follow a published rule with that rule's own information: chance can make it the
best one. So the oracle is never behind the published rules.
"""

from __future__ import annotations

from typing import NamedTuple

from extproc.lab import oracle, published_rules
from extproc.lab.tables.book import Book
from extproc.lab.tables.contenders import OURS
from extproc.lab.tables.prefix_trials import oracle_trials
from extproc.lab.tables.trials import Figures, Trial

_METRIC = "mean_ttft_ms"


class Best(NamedTuple):
    """The rule with the shortest mean TTFT."""

    rule: str
    figures: Figures

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{oracle.NAME}, {self.rule}"


def best_oracle(book: Book, scene: str) -> Best | None:
    """Return the best rule of a scene; None if one has not been simulated."""
    found: list[Best] = []
    for trial in oracle_trials(scene):
        figures = book.of(trial)
        if figures is None:
            return None
        found.append(Best(oracle.rule_of(trial.strategy), figures))
    for name in published_rules.names():
        theirs = book.of(Trial(scene, name))
        if theirs is not None:
            found.append(Best(name, theirs))
    return min(found, key=lambda one: one.figures[_METRIC])


def over_oracle(book: Book, scene: str) -> float | None:
    """Return our mean TTFT over the oracle's, both with the first seed; None if unknown."""
    best, ours = best_oracle(book, scene), book.of(Trial(scene, OURS))
    return ours[_METRIC] / best.figures[_METRIC] if best and ours else None
