"""What PrefixCache weighs against what.

Nobody needs to turn them: the costs of one request are compared with each other only.
What each of them is worth is measured in the laboratory (docs/prefix-caches.md).
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """Each of them says nothing at 0, and `nearly` at 1."""

    answer: float = 500.0
    """Tokens to compute that an answer counts as: what no cache saves."""

    own: float = 0.3
    """Of the request's own prompt: it waits for that, too."""

    busy: float = 3000.0
    """Tokens to compute that as many requests in flight as the idlest endpoint has count as: they
    slow each other down, and fill the cache."""

    waiting: float = 2.0
    """Requests that one which waits in the engine's queue counts as, beside itself: there are more
    than the engine has room for."""

    full: float = 30_000.0
    """Tokens to compute that a full KV cache counts as: who comes there waits until others are
    over."""

    others: float = 1.0
    """Of what other sidecars' prompts have yet to compute, as far as it can be guessed."""

    home: float = 0.8
    """Share of a prompt that is believed to be where it is at home, if all requests are others'."""

    nearly: float = 1.25
    """Times the least cost: what costs no more than that is as good."""


WEIGHTS = Weights()
