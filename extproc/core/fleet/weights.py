"""The weights of the PrefixCache strategy.

They are not configurable: only the costs of one request are compared with each other.
docs/prefix-caches.md has the measured effect of each weight.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """A weight of 0 has no effect; for `nearly` it is 1."""

    answer: float = 500.0
    """Tokens to compute that a response counts as; no cache saves these."""

    own: float = 0.3
    """Share of the request's own prompt that counts, because the request waits for it, too."""

    context: float = 0.03
    """Share of each prompt in flight that counts as tokens to compute, cached or not. The engine
    reads it for each token of the response. By the laboratory's profiles, 100 tokens of a response
    take 0.11 to 0.22 of the time to compute the prompt. The number of requests covers a part of
    that: in the laboratory, 0.03 gave shorter times than 0, 0.08 and 0.2."""

    returning: float = 4.0
    """Factor of the share of its time in which a session has a request in flight. The product is
    the number of requests that a paused session counts as, at most one. So sessions that are in
    flight for a quarter of their time count fully, because their requests often meet."""

    copies: float = 1.0
    """Factor of what each later use of a further copy of a prefix saves: the difference in prompts
    in flight between endpoints with the prefix and others, counted with `context`. When the uses
    have saved as many tokens as the copy has, half of its tokens count as saved, and with three
    times more uses, 90 % of them."""

    busy: float = 3000.0
    """Tokens to compute that a usual number of in-flight requests counts as, which is the middle
    between the idlest and the mean endpoint's: requests slow each other down, and fill the cache.
    """

    waiting: float = 2.0
    """Additional requests that a request in the engine's queue counts as, because a queue means
    that the engine has no room."""

    full: float = 30_000.0
    """Tokens to compute that a full KV cache counts as, because a new request waits there until
    others end."""

    others: float = 1.0
    """Share that counts of the estimated backlog of other sidecars' prompts."""

    home: float = 1.0
    """Share of a prompt assumed cached on its home endpoint, if all requests are others'. In the
    laboratory, agents behind four sidecars waited 1.6 times as long with 0.8."""

    nearly: float = 1.25
    """Factor of the least cost up to which other endpoints count as equal, if all requests are
    others'."""


WEIGHTS = Weights()
