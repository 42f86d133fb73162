"""Runs made by hand."""

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
    """Four requests, the last of which failed, in ten seconds; anything can be replaced.

    The first waited for nothing, the second a second for the client and answers with one token.
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
    """No request got an answer, and there was no time either."""
    nothing = [NEVER] * 4
    return make_run(first=nothing, last=nothing, gaps=[], endpoint=[-1] * 4, seconds=0.0)
