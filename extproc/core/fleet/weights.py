"""The weights of the PrefixCache strategy.

They are not configurable: only the costs of one request are compared with each other.
docs/prefix-caches.md has the measured effect of each weight.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """A weight of 0 has no effect; for `nearly` it is 1."""

    answer: float = 500.0
    """Tokens that a response is expected to have. They need room in the KV cache, and others wait
    for them as for tokens to compute."""

    reading: float = 0.005
    """Share of each prompt in flight that counts as tokens to compute, cached or not. The engine
    reads it in each step, also in the first one of a new request."""

    step: float = 200.0
    """Tokens that an endpoint with requests counts as, because a new one waits until the present
    step ends."""

    batch: float = 0.03
    """Share of a request's tokens, with `answer`, that each request on the endpoint waits for. For
    the tokens to compute, half of it is multiplied by the mean number of requests on an endpoint
    instead."""

    balance: float = 0.5
    """Added to `batch`, divided by the usual requests + 1. It balances requests also while there
    are few."""

    crowd: float = 4.0
    """Factor of the number of prompts that wait on the median endpoint. The product is how many
    times more a token to compute counts, because later prompts wait for it."""

    context: float = 0.03
    """Share of each prompt in flight that a copy of its prefix elsewhere would save. The engine
    reads the prompt for each token of the response. By the laboratory's profiles, 100 tokens of a
    response take 0.11 to 0.22 of the time to compute the prompt."""

    returning: float = 4.0
    """Factor of the share of its time in which a session has a request in flight. The product is
    the number of requests that a paused session counts as, at most one. So sessions that are in
    flight for a quarter of their time count fully, because their requests often meet."""

    copies: float = 1.0
    """Factor of what each later use of a further copy of a prefix saves: the difference in prompts
    in flight between endpoints with the prefix and others, counted with `context`. When the uses
    have saved as many tokens as the copy has, half of its tokens count as saved, and with three
    times more uses, 90 % of them."""

    waiting: float = 2.0
    """Additional requests that a request in the engine's queue counts as, because a queue means
    that the engine has no room."""

    full: float = 0.07
    """Share of a KV cache that counts as tokens to compute if the cache is full, because a new
    request waits there until others end."""

    others: float = 1.0
    """Share that counts of the estimated backlog of other sidecars' prompts."""

    home: float = 1.0
    """Factor of the share of others' requests. The product is the share of a prompt that is assumed
    to be cached on its home endpoint, except for a previous turn that another sidecar has sent. It
    is less if prompts rarely repeat earlier ones."""

    nearly: float = 1.7
    """Factor of the least wait for prompts up to which other endpoints count as equal, if all
    requests are others'. It is less if prompts rarely repeat earlier ones."""


WEIGHTS = Weights()
