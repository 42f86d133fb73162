"""Measurements of requests: stored in columns, and merged over processes into a `Run`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extproc.lab.load.exchange import Exchange
from extproc.lab.load.failure import Failure
from extproc.lab.load.response import Usage
from extproc.lab.measures.run import Floats, Ints, Run
from extproc.lab.workloads.workload import Turn

_TIMES = ("wanted", "sent", "first", "last")
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "endpoint")


def _columns() -> dict[str, array[Any]]:
    columns: dict[str, array[Any]] = {name: array("d") for name in _TIMES}
    return columns | {name: array("q") for name in _COUNTS}


@dataclass
class Records:
    """The measurements of one process; times count from `begin`."""

    begin: float
    columns: dict[str, array[Any]] = field(default_factory=_columns)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    endpoints: dict[str, int] = field(default_factory=dict)
    """Numbers of endpoints by name, in the order of their first response."""

    failures: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Number and first message of each kind of failure."""

    tokens: int = 0
    counted_as_chunks: int = 0
    """Responses without usage."""

    not_streamed: int = 0
    succeeded: int = 0
    failed: int = 0

    def add(self, turn: Turn, wanted: float, exchange: Exchange) -> None:
        """Add a finished request."""
        usage = self._usage(turn, exchange)
        first, last = nan, nan
        if exchange.failure is None:
            self.succeeded += 1
            self.tokens += usage.output_tokens
            self.not_streamed += not exchange.streamed
            self.gaps.extend(exchange.answer.gaps)
            first, last = exchange.answer.first, exchange.answer.last
        else:
            self._count(exchange.failure)
        for name, time in zip(_TIMES, (wanted, exchange.sent, first, last), strict=True):
            self.columns[name].append(time - self.begin)
        counts = (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
        for name, value in zip(_COUNTS, (*counts, self._endpoint(exchange)), strict=True):
            self.columns[name].append(value)

    def _usage(self, turn: Turn, exchange: Exchange) -> Usage:
        answer = exchange.answer
        if answer.usage is not None and answer.usage.output_tokens:
            return answer.usage
        self.counted_as_chunks += exchange.failure is None
        return Usage(turn.prompt_tokens, answer.tokens)

    def _endpoint(self, exchange: Exchange) -> int:
        if not exchange.endpoint:
            return -1
        return self.endpoints.setdefault(exchange.endpoint, len(self.endpoints))

    def _count(self, failure: Failure) -> None:
        self.failed += 1
        count, first = self.failures.get(failure.kind, (0, failure.message))
        self.failures[failure.kind] = (count + 1, first)


def merged(parts: Sequence[Records], workload: str, strategy: str) -> Run:
    """Return one run of all parts, in the order in which requests were sent."""
    names = sorted({name for part in parts for name in part.endpoints})
    columns = {name: _joined(parts, name) for name in _TIMES}
    counts = {name: _joined(parts, name) for name in _COUNTS}
    counts["endpoint"] = np.concatenate([_renumbered(part, names) for part in parts])
    counts["cached_tokens"] = _cached(counts["cached_tokens"], columns["last"])
    order = np.argsort(columns["sent"], kind="stable")
    last = columns["last"]
    return Run(
        workload=workload,
        strategy=strategy,
        seconds=float(np.nanmax(last)) if np.isfinite(last).any() else 0.0,
        wanted=columns["wanted"][order],
        sent=columns["sent"][order],
        first=columns["first"][order],
        last=last[order],
        prompt_tokens=counts["prompt_tokens"][order],
        output_tokens=counts["output_tokens"][order],
        cached_tokens=counts["cached_tokens"][order],
        endpoint=counts["endpoint"][order],
        gaps=np.concatenate([_array(part.gaps) for part in parts]),
        notes=_notes(parts, names, peak(columns["sent"], last)),
    )


def _cached(tokens: NDArray[Any], last: NDArray[Any]) -> NDArray[Any]:
    """Return cached tokens, with 0 for requests without a value if others have one.

    vLLM omits the value for prompts without a cache hit. If no request has one, the server does
    not report cached tokens.
    """
    missing = (tokens < 0) & np.isfinite(last)
    return np.where(missing, 0, tokens) if (tokens >= 0).any() else tokens


def _joined(parts: Sequence[Records], name: str) -> NDArray[Any]:
    return np.concatenate([_array(part.columns[name]) for part in parts])


def _array(column: array[Any]) -> NDArray[Any]:
    return np.array(column, dtype=np.float64 if column.typecode == "d" else np.int64)


def _renumbered(part: Records, names: Sequence[str]) -> Ints:
    """Return the endpoints of a part as indexes of `names`; -1 stays -1."""
    table = np.array([*(names.index(name) for name in part.endpoints), -1], dtype=np.int64)
    numbers: Ints = table[_array(part.columns["endpoint"])]
    return numbers


def _notes(parts: Sequence[Records], names: Sequence[str], in_flight: int) -> dict[str, Any]:
    notes: dict[str, Any] = {"peak_in_flight": in_flight}
    if names:
        notes["endpoints"] = len(names)
        notes["endpoint_names"] = list(names)
    for name in ("counted_as_chunks", "not_streamed"):
        if found := sum(getattr(part, name) for part in parts):
            notes[name] = found
    return notes


def failures_of(parts: Sequence[Records]) -> dict[str, dict[str, Any]]:
    """Return the count and the first message of each kind, the most frequent kind first."""
    total: dict[str, dict[str, Any]] = {}
    for part in parts:
        for kind, (count, first) in part.failures.items():
            found = total.setdefault(kind, {"count": 0, "first": first})
            found["count"] += count
    return dict(sorted(total.items(), key=lambda item: -item[1]["count"]))


def peak(sent: Floats, last: Floats) -> int:
    """Return the largest number of successful requests in flight at one time."""
    whole = ~np.isnan(last)
    times = np.concatenate([sent[whole], last[whole]])
    steps = np.repeat([1, -1], int(whole.sum()))
    # If one request ends at the time when another begins, they do not overlap.
    running = np.cumsum(steps[np.lexsort((steps, times))])
    return int(running.max(initial=0))
