"""A split: one name whose requests several models share by weight.

It uses weighted rendezvous hashing (Thaler, Ravishankar 1998; weights as in Schindelhauer,
Schomaker 2005). Each target hashes the request's key, which its conversation or user shares, to a
number, and the lowest number wins. So equal keys get the same target on every sidecar, the shares
match the weights, and a changed weight moves as few requests as possible.
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
        """The source of the key in a request."""

    def order(self, sticky: str, rng: Random) -> Iterator[str]:
        """Return the targets for a request, best first.

        The others are used if a target has no endpoints. A request without a key gets a random
        order.
        """
        text = sticky or str(rng.getrandbits(64))
        ranked = sorted(
            (self._draw(text, target.model, target.weight), target.model)
            for target in self.spec.targets
        )
        return iter([model for _, model in ranked])

    def _draw(self, text: str, model: str, weight: int) -> float:
        """Return a number with an exponential distribution whose rate is the weight."""
        if not weight:
            return inf
        # A length before each part keeps different pairs of texts different.
        mixed = f"{len(self.name)}:{self.name}{len(model)}:{model}{text}"
        return -log((xxhash.xxh64_intdigest(mixed.encode()) + 1) / _DRAWS) / weight
