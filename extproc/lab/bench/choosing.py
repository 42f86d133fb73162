"""The time of each strategy to choose an endpoint, without the rest of the decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.routers import BusyRouter, best, documents

STRATEGIES = (
    *("PrefixHash", "PrefixCache", "LeastLoad", "LeastRequest"),
    *("LeastQueue", "QueueKVCache", "LowLatency"),
)
ENDPOINTS = (8, 100, 200)


def grid(times: int, numbers: Sequence[int] = ENDPOINTS) -> Grid:
    """Return the times by number of endpoints."""
    rows = []
    for endpoints in numbers:
        costs = best({name: _deciding(name, endpoints) for name in STRATEGIES}, times)
        rows.append([str(endpoints), *(f"{cost:.0f}" for cost in costs.values())])
    title = "choosing an endpoint and a second candidate, known prompts; CPU us per request"
    return Grid(title, ["endpoints", *STRATEGIES], rows, left=0)


def _deciding(strategy: str, endpoints: int) -> Callable[[], object]:
    fleet = BusyRouter(strategy, endpoints)
    resolved_requests = [fleet.resolve(document) for document in documents()]
    for resolved in resolved_requests:
        fleet.decide(resolved)
    turns = cycle(resolved_requests)
    return lambda: fleet.decide(next(turns))
