"""What came of a run, measured or simulated: one row of each array is one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Requests in any order. Times are seconds from the run's beginning.

    A request that failed has NaN for `first` and `last`.
    """

    workload: str
    strategy: str

    seconds: float
    """From the beginning to the last answer."""

    wanted: Floats
    """When the client wanted to send it: before it waited for a free place of its own."""

    sent: Floats
    """When it was sent."""

    first: Floats
    """When its first token came, by the client's clock."""

    last: Floats
    """When its last token came."""

    prompt_tokens: Ints
    output_tokens: Ints

    cached_tokens: Ints
    """Of the prompt, found in the engine's cache; -1 where nobody said."""

    endpoint: Ints
    """Number of the endpoint that served it; -1 where nobody said."""

    gaps: Floats
    """All times between two tokens of one answer (inter-token latencies)."""

    client_busy: float = 0.0
    """Share of the time in which the client was at work."""

    notes: dict[str, Any] = field(default_factory=dict)
    """What else is known, by name: `preemptions`, `router_us` and the like."""

    @property
    def succeeded(self) -> NDArray[np.bool_]:
        """Which requests got a whole answer."""
        return ~np.isnan(self.last)
