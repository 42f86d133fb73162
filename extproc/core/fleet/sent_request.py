"""The record of a request that the sidecar sends to an endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SentRequest(NamedTuple):
    """The properties of a request that later decisions depend on.

    The strategy sets those that it uses. Sidecars that share state exchange them.
    """

    adapter: str = ""
    """The LoRA adapter that the endpoint will have in memory; empty if none."""

    chains: Sequence[Sequence[int]] = ()
    """The blocks of each prompt that the endpoint will have in its cache."""

    prefix: int | None = None
    """The last block that some endpoint had before; None if none had any."""

    tokens: float | None = None
    """Tokens of the prompts; None without a prediction."""

    to_compute: float = 0.0
    """Those of `tokens` that the endpoint probably does not have in its cache."""

    turn: int | None = None
    """The hash of the whole prompt; None if it is unknown."""


NOTHING_SENT = SentRequest()
"""A request of a strategy that records only the number of requests in flight."""
