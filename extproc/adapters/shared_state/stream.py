"""The stream of batches on the server.

A Redis stream, and not publish/subscribe: a sidecar that reconnects goes on where it was, one that
starts reads the last minute, and the ids of entries carry the server's clock. One round trip writes
a batch and reads the others': with five sidecars, waking up for each entry cost three times more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from extproc.adapters.shared_state.server import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

KEPT_SECONDS = 60.0
"""Age after which entries are removed."""

MOST_ENTRIES = 50_000
"""Entries of the stream at most, about."""

_READ_AT_ONCE = 500
_ORIGIN, _BATCH = b"o", b"b"


class Entry(NamedTuple):
    """A batch of another sidecar."""

    message: bytes
    age: float
    """Seconds since it was written, by the server's clock."""


class BatchStream:
    """The stream under one key, through an open connection; `clock` returns seconds."""

    def __init__(
        self, connection: AbstractConnection, key: str, origin: str, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._key = key
        self._origin = origin.encode()
        self._clock = clock
        self._ahead = 0.0  # the server's clock minus this one
        self._last = (0, 0)

    async def begin(self, after: tuple[int, int] | None = None) -> None:
        """Read the server's clock, and begin after an entry, or with the last minute.

        Raises RedisError, OSError.
        """
        await self.set_clock()
        oldest = (int((self._clock() + self._ahead - KEPT_SECONDS) * 1000), 0)
        self._last = max(oldest, after or oldest)

    @property
    def last(self) -> tuple[int, int]:
        """The id of the last entry that was read."""
        return self._last

    async def set_clock(self) -> None:
        """Read the server's clock, and remove old entries. Raises RedisError, OSError."""
        seconds, micros = (await self.call([("TIME",)]))[0]
        self._ahead = int(seconds) + int(micros) / 1e6 - self._clock()
        oldest = int((self._clock() + self._ahead - KEPT_SECONDS) * 1000)
        await self.call([("XTRIM", self._key, "MINID", "~", oldest)])

    async def exchange(self, message: bytes | None) -> tuple[list[Entry], bool]:
        """Write a batch, if there is one, and read others' batches.

        Return them, and True if there are more. Raises RedisError, OSError.
        """
        position = f"{self._last[0]}-{self._last[1]}"
        commands: list[tuple[Any, ...]] = [
            ("XREAD", "COUNT", _READ_AT_ONCE, "STREAMS", self._key, position)
        ]
        if message is not None:
            fields = (_ORIGIN, self._origin, _BATCH, message)
            add = ("XADD", self._key, "MAXLEN", "~", MOST_ENTRIES, "*", *fields)
            commands.insert(0, add)
        *added, found = await self.call(commands)
        entries = self._entries(found[0][1]) if found else []
        if added and not found and _id(added[0]) < self._last:
            # A server that lost its data, or another one after a failover, with an earlier clock.
            self._last = (0, 0)
        return entries, bool(found) and len(found[0][1]) == _READ_AT_ONCE

    async def call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands in one round trip, and return their responses.

        Raises RedisError, also if the server refused one of the commands, and OSError.
        """
        from redis import ResponseError

        connection, responses = self._connection, list[Any]()
        refusal: ResponseError | None = None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            packed = connection.pack_commands(commands)
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    responses.append(await connection.read_response(disable_decoding=True))
                except ResponseError as error:  # the other responses follow
                    refusal = error
        if refusal is not None:
            raise refusal
        return responses

    def _entries(self, found: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
        """Return the batches of other sidecars among the entries."""
        now = self._clock() + self._ahead
        entries = []
        for id_, values in found:
            self._last = _id(id_)
            if len(values) == 4 and values[0] == _ORIGIN and values[1] != self._origin:
                entries.append(Entry(values[3], max(0.0, now - self._last[0] / 1000)))
        return entries


def _id(text: bytes) -> tuple[int, int]:
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)
