"""The messages between the parent and its worker processes, sent over pipes.

Each message is a pickle with its length before it. Both sides are the same program and trust each
other.
"""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

from extproc.lab.load.process_monitor import ProcessLoad
from extproc.lab.load.records import Records

_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Ready:
    """Message of a worker that can begin its next phase."""


@dataclass(frozen=True)
class Begin:
    """Message of the parent with the start of a phase, on the machine's monotonic clock."""

    at: float


@dataclass(frozen=True)
class Stop:
    """Message of the parent that ends a phase early and requests the results."""


@dataclass(frozen=True)
class Progress:
    """Message of a worker with its counts so far."""

    succeeded: int
    failed: int
    in_flight: int
    tokens: int


@dataclass(frozen=True)
class Result:
    """Message of a worker with its measurements of a phase."""

    records: Records
    watched: ProcessLoad
    unfinished: int
    """Requests in flight when the phase was stopped."""

    retried: int
    connections: int
    resident_bytes: int


def packed(message: object) -> bytes:
    """Return the bytes of a message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def received(reader: asyncio.StreamReader) -> Any:
    """Return the next message; None if the other side has closed the pipe."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
