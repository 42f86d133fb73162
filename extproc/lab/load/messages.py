"""What the parent and its worker processes say to each other over pipes.

Pickles with their length before them. Both ends are the same program, so they may be trusted.
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
    """A worker can begin its next phase."""


@dataclass(frozen=True)
class Begin:
    """The parent says when, on the monotonic clock that all processes of a machine share."""

    at: float


@dataclass(frozen=True)
class Stop:
    """The parent wants no more, but what there is."""


@dataclass(frozen=True)
class Progress:
    """A worker's figures so far."""

    succeeded: int
    failed: int
    in_flight: int
    tokens: int


@dataclass(frozen=True)
class Result:
    """All that a worker has measured."""

    records: Records
    watched: ProcessLoad
    unfinished: int
    """Requests under way when it was stopped."""

    retried: int
    connections: int
    resident_bytes: int


def packed(message: object) -> bytes:
    """A message as it is written."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def received(reader: asyncio.StreamReader) -> Any:
    """The next message; None where the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return pickle.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
