"""Checkpoints of what the endpoints' caches hold, one key for each endpoint.

One of the sidecars writes them, in turn, so that each is less than half a minute old. A sidecar
that starts reads them, and then the batches of the last minute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from math import ceil

from extproc.adapters.shared_state.codec import (
    UnreadableError,
    decode_checkpoint,
    encode_checkpoint,
)
from extproc.adapters.shared_state.stream import BatchStream
from extproc.core.fleet.fleet import Fleet
from extproc.core.sharing.checkpoint import checkpoint_of, restore

ROUND_SECONDS = 20
"""Seconds in which the checkpoint of each endpoint is written at least once."""

KEPT_SECONDS = 600
"""Seconds after which a checkpoint expires that is not written again."""

_READ_AT_ONCE = 8


class Checkpoints:
    """The checkpoints of a fleet's endpoints, under keys that begin with `key`."""

    def __init__(self, fleet: Fleet, key: str) -> None:
        self._fleet = fleet
        self._key = key
        self._left: list[str] = []

    async def read(self, stream: BatchStream) -> int:
        """Restore all endpoints, and return the unreadable ones. Raises RedisError, OSError."""
        unreadable = 0
        for addresses in _batched(self._fleet.endpoints, _READ_AT_ONCE):
            keys = map(self._key_of, addresses)
            for address, message in zip(
                addresses, (await stream.call([("MGET", *keys)]))[0], strict=True
            ):
                try:
                    if message is not None:
                        restore(self._fleet.signals, address, decode_checkpoint(message))
                except UnreadableError:
                    unreadable += 1
        return unreadable

    async def write_some(self, stream: BatchStream) -> None:
        """Write the next checkpoints, once a second. Raises RedisError, OSError."""
        self._left = self._left or list(self._fleet.endpoints)
        for _ in range(min(ceil(len(self._fleet.endpoints) / ROUND_SECONDS), len(self._left))):
            address = self._left.pop()
            checkpoint = checkpoint_of(self._fleet.signals, address)
            if checkpoint is not None:
                message = encode_checkpoint(checkpoint)
                await stream.call([("SET", self._key_of(address), message, "EX", KEPT_SECONDS)])

    def _key_of(self, address: str) -> str:
        return f"{self._key}:cache:{address}"


def _batched(texts: Collection[str], size: int) -> Iterator[list[str]]:
    left = iter(texts)
    while some := list(islice(left, size)):
        yield some
