"""Runs with chosen figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from extproc.lab.measures.run import Run

NEVER = float("nan")

MakeRun = Callable[..., Run]


@pytest.fixture
def make_run() -> MakeRun:
    """Return four requests in ten seconds, of which the last failed; any field can be replaced.

    The first did not wait. The second waited a second for the client and has one token.
    """

    def make(**other: Any) -> Run:
        arrays: dict[str, Sequence[float]] = {
            "wanted": [0.0, 0.0, 1.0, 2.0],
            "sent": [0.0, 1.0, 1.0, 2.0],
            "first": [0.5, 2.0, 1.25, NEVER],
            "last": [1.5, 2.0, 3.25, NEVER],
            "gaps": [0.1] * 10 + [0.5] * 4,
        }
        counts: dict[str, Sequence[int]] = {
            "prompt_tokens": [100, 200, 300, 400],
            "output_tokens": [11, 1, 5, 7],
            "cached_tokens": [50, -1, 150, -1],
            "endpoint": [0, 1, 0, -1],
        }
        values: dict[str, Any] = {"workload": "by-hand", "strategy": "PrefixHash", "seconds": 10.0}
        for name in arrays:
            values[name] = np.array(other.pop(name, arrays[name]), dtype=np.float64)
        for name in counts:
            values[name] = np.array(other.pop(name, counts[name]), dtype=np.int64)
        return Run(**{**values, **other})

    return make


@pytest.fixture
def failed_run(make_run: MakeRun) -> Run:
    """Return a run without responses and without a duration."""
    nothing = [NEVER] * 4
    return make_run(first=nothing, last=nothing, gaps=[], endpoint=[-1] * 4, seconds=0.0)
