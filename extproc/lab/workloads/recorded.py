"""A request as recorded by a log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from extproc.lab.workloads.workload import Api, Segment, Turn

MOST_TOKENS = 10_000_000
"""Most tokens of a prompt or a response; more is a mistake."""

_LATEST_SECONDS = 1e11
"""Later times are in milliseconds."""


class Recorded(NamedTuple):
    """A request that can be replayed."""

    time: float
    """Seconds from any zero."""

    model: str
    api: Api
    turn: Turn


def prompt_of(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the prompt without empty segments."""
    return tuple(segment for segment in segments if segment.tokens > 0)


def _seconds(value: object) -> float:
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.timestamp()
        elif isinstance(value, bool):
            pass
        # This excludes infinity and NaN.
        elif isinstance(value, int | float) and abs(value) < _LATEST_SECONDS:
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be seconds, or an RFC 3339 time with its offset from UTC")


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A number, or an RFC 3339 time."""
