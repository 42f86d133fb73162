"""How much a test tries: enough in `make test` to find a regression, all of it in `make faults`."""

from __future__ import annotations

import os

FULL = os.environ.get("EXTPROC_FAULTS") == "full"


def extent(short: int, full: int) -> int:
    """Return `short` in `make test` and `full` in `make faults`."""
    return full if FULL else short
