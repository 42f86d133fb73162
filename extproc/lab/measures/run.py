"""The result of a run, measured or simulated: each row of an array is one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Requests in any order. Times are seconds since the start of the run.

    A failed request has NaN for `first` and `last`.
    """

    workload: str
    strategy: str

    seconds: float
    """Seconds from the start to the last response's end."""

    wanted: Floats
    """Time at which the client wanted to send it, before it waited for a free slot of its own."""

    sent: Floats
    """Time of sending."""

    first: Floats
    """Time of the first token, by the client's clock."""

    last: Floats
    """Time of the last token."""

    prompt_tokens: Ints
    output_tokens: Ints

    cached_tokens: Ints
    """Prompt tokens found in the engine's cache; -1 if unknown."""

    endpoint: Ints
    """Number of the endpoint that served it; -1 if unknown."""

    gaps: Floats
    """All times between two tokens of one response (inter-token latencies)."""

    client_busy: float = 0.0
    """Share of the time in which the client worked."""

    notes: dict[str, Any] = field(default_factory=dict)
    """Other figures by name, such as `preemptions` and `router_us`."""

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """True for each request with a whole response."""
        return ~np.isnan(self.last)
