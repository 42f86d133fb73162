"""The loading of LoRA adapters, for PrefixCache's costs.

While an engine loads an adapter, it computes nothing. If all slots are taken, it drops another
adapter, which is probably needed again. In a free slot, the adapter serves all later requests, too.
So only a small part counts then. A rare adapter stays on one endpoint, and a popular one spreads
over the fleet. An engine that does not report its slots may have free ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from extproc.core.fleet.residency import Residency

_LOAD_TOKENS = 5000.0
"""Tokens to compute that loading an adapter counts as. An L4 computes as many in about a
second. In the laboratory, 2,500 and 10,000 gave about the same times."""

_INTO_FREE_SLOT = 0.1
"""Share of `_LOAD_TOKENS` that counts if no other adapter is dropped."""


def load_tokens(
    residency: Residency, adapter: str, addresses: Iterable[str], stale: Collection[str]
) -> list[float]:
    """Return the tokens that loading an adapter counts as on each of these endpoints.

    Endpoints that may hang (`stale`) count as if they had no adapter and no slot.
    """
    found = []
    for address in addresses:
        hangs = address in stale
        if residency.has(address, adapter) and not hangs:
            found.append(0.0)
        elif hangs or residency.replaces(address):
            found.append(_LOAD_TOKENS)
        else:
            found.append(_LOAD_TOKENS * _INTO_FREE_SLOT)
    return found
