"""A request as some log has recorded it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import isfinite
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from extproc.lab.workloads.workload import Api, Segment, Turn


class Recorded(NamedTuple):
    """What can be replayed."""

    time: float
    """Seconds from any zero."""

    model: str
    api: Api
    turn: Turn


def prompt_of(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Less the empty ones."""
    return tuple(segment for segment in segments if segment.tokens > 0)


def _seconds(value: object) -> float:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.timestamp()
        elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be seconds, or an RFC 3339 time with its offset from UTC")


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A number, or an RFC 3339 time."""
