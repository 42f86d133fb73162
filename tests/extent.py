"""The number of tries and the waiting time of tests.

`make test` tries enough to find a regression, and no busy machine can make it fail. `make faults`
tries everything and asserts durations, so it needs a quiet machine.
"""

from __future__ import annotations

import os

FULL = os.environ.get("EXTPROC_FAULTS") == "full"

PATIENCE = 60.0
"""Seconds after which a test fails if an event has not happened; the event takes far less."""


def extent(short: int, full: int) -> int:
    """Return `short` in `make test` and `full` in `make faults`."""
    return full if FULL else short


def limit(seconds: float) -> float:
    """Return `seconds` in `make faults` and PATIENCE in `make test`."""
    return seconds if FULL else max(seconds, PATIENCE)
