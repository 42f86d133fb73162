"""A split: one name whose requests several models share by weight.

Each target draws a number for a request from what the request has in common with
others of its conversation or user, and the best draw wins: weighted rendezvous
hashing (Thaler, Ravishankar 1998; the weights as in Schindelhauer, Schomaker 2005).
So equal requests win the same target on every sidecar, the shares are the
weights, and a change of one weight moves only the requests it has to.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, log
from random import Random

import xxhash

from extproc.core.schema import PrefixHashSpec, SplitSpec

_DRAWS = 2.0**64


class Split:
    """The targets of one name."""

    def __init__(self, name: str, spec: SplitSpec, *, answer_as_requested: bool = False) -> None:
        self.name = name
        self.answer_as_requested = answer_as_requested
        """True if responses carry the split's name."""
        self.spec = spec
        self.key: PrefixHashSpec = spec.key
        """How to read from a request what makes it stay."""

    def order(self, sticky: str, rng: Random) -> Iterator[str]:
        """The targets for a request, the one it belongs to first.

        The next ones are for when a target has no endpoints. A request with nothing to
        stick to goes where chance will have it.
        """
        text = sticky or str(rng.getrandbits(64))
        ranked = sorted(
            (self._draw(text, target.model, target.weight), target.model)
            for target in self.spec.targets
        )
        return iter([model for _, model in ranked])

    def _draw(self, text: str, model: str, weight: int) -> float:
        """Exponentially distributed with the weight as its rate: the least of all wins."""
        if not weight:
            return inf
        # A length before each part: no two pairs of texts run together to one.
        mixed = f"{len(self.name)}:{self.name}{len(model)}:{model}{text}"
        return -log((xxhash.xxh64_intdigest(mixed.encode()) + 1) / _DRAWS) / weight
