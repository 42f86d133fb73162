"""How much is tried: enough in `make test` to find a regression, all of it in `make faults`."""

from __future__ import annotations

import os

FULL = os.environ.get("EXTPROC_FAULTS") == "full"


def extent(short: int, full: int) -> int:
    """So many, or so many seconds."""
    return full if FULL else short
