"""A request as some log has recorded it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from extproc.lab.workloads.workload import Api, Segment, Turn

MOST_TOKENS = 10_000_000
"""Of a prompt or an answer; more is a mistake."""

_LATEST_SECONDS = 1e11
"""What is later was meant in milliseconds."""


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
        elif isinstance(value, bool):
            pass
        # Which infinity and not-a-number are not.
        elif isinstance(value, int | float) and abs(value) < _LATEST_SECONDS:
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be seconds, or an RFC 3339 time with its offset from UTC")


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A number, or an RFC 3339 time."""
