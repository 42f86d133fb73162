"""A batch: what one sidecar reports to the others at once.

Requests have numbers, which their sidecar assigns. Models, addresses and adapters are positions in
the batch's list of names, whose first entry is empty.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

Sent = tuple[
    int,  # number of the request
    int,  # name of the model
    int,  # name of the address
    int,  # name of the adapter, 0 if none
    float,  # tokens of the prompts, negative without a prediction
    float,  # those of them that the endpoint must compute
    int | None,  # last block that some endpoint had before
    float,  # seconds from the decision to the batch
    list[bytes],  # chains of blocks
    int | None,  # hash of the whole prompt
]
"""A request that the sidecar sent to an endpoint."""

SENT_AGO: Final = 7
"""The position of the seconds in `Sent`."""

Held = tuple[
    int,  # number of the request
    int,  # name of the model
    int,  # name of the address
    float,  # tokens of the prompts, negative without a prediction
    float,  # those of them that the endpoint has yet to compute
    float,  # seconds from the decision to the batch
]
"""A request in flight."""


class Batch(NamedTuple):
    """The course of a sidecar's requests since its batch before."""

    origin: str
    """The id of the sidecar. Each start has another one."""

    names: Sequence[str] = ("",)
    """Names of models, addresses and adapters."""

    sent: Sequence[Sent] = ()
    """Requests that were sent, the oldest first."""

    moved: Sequence[tuple[int, int]] = ()
    """Numbers of requests that another endpoint serves after a retry, and its address."""

    began: Sequence[int] = ()
    """Numbers of requests that have their first token."""

    ended: Sequence[int] = ()
    """Numbers of requests that have ended."""

    held: Sequence[Held] | None = None
    """All requests in flight, at intervals; None in other batches. It corrects the effect of
    batches that were lost."""

    ejected: Sequence[tuple[int, float]] = ()
    """Addresses that are ejected, and for how many seconds from the batch on.

    An address is in one of `ejected`, `tried` and `returned` at most: only its last event counts.
    """

    tried: Sequence[int] = ()
    """Ejected addresses that got a request on trial."""

    returned: Sequence[int] = ()
    """Addresses that returned to service."""

    token_sizes: Mapping[str, float] = {}
    """Learned bytes per token by model, in batches with `held`."""

    is_last: bool = False
    """True if the sidecar stops."""


def packed(blocks: Sequence[int]) -> bytes:
    """Return blocks as bytes: 8 for each, in the byte order of the machine (little-endian)."""
    return array("Q", blocks).tobytes()


def unpacked(blocks: bytes) -> list[int]:
    """Return the blocks in these bytes. An incomplete block at the end is ignored."""
    found = array("Q")
    found.frombytes(blocks[: len(blocks) // 8 * 8])
    return found.tolist()
