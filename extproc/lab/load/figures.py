"""Merges the results of the workers into a run, and reports on the load generator itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from extproc.lab.load import records
from extproc.lab.load.failure import shortened
from extproc.lab.load.messages import Result
from extproc.lab.load.parent import Collected
from extproc.lab.load.records import merged
from extproc.lab.measures.run import Run

BUSY = 0.7
"""Share of CPU time above which the client may distort the results."""

LATE_MS = 20.0
"""Delay of the client's event loop (99th percentile) above which it distorts times to first
token."""


Failures = dict[str, dict[str, Any]]
"""The `count` and the `first` message of each kind of failure."""


def run_of(collected: Collected, workload: str, strategy: str, secrets: Sequence[str] = ()) -> Run:
    """Return all results as one run, without secrets that messages of the server may quote."""
    results = collected.results
    run = merged([result.records for result in results], workload, strategy)
    busy = max(result.watched.busy for result in results)
    notes = {**run.notes, **_notes(collected)}
    if failures := failures_of(results, secrets):
        notes["failures"] = failures
    if failures := failures_of(collected.warm_up, secrets):
        notes["warm_up_failures"] = failures
    return replace(run, client_busy=busy, notes=notes)


def failures_of(results: Sequence[Result], secrets: Sequence[str]) -> Failures:
    """Return the failures, with secrets replaced."""
    found = records.failures_of([result.records for result in results])
    for kind in found.values():
        for secret in secrets:
            kind["first"] = kind["first"].replace(secret, "***")
        # Shorten after the replacement, which does not find half a secret.
        kind["first"] = shortened(kind["first"])
    return found


def _notes(collected: Collected) -> dict[str, Any]:
    results = collected.results
    notes: dict[str, Any] = {"client": _client(results)}
    for name in ("retried", "unfinished"):
        if found := _sum(results, name):
            notes[name] = found
    if collected.reason:
        notes["interrupted"] = collected.reason
    return notes


def _client(results: Sequence[Result]) -> dict[str, Any]:
    """Return measurements of the load generator itself."""
    watched = [result.watched for result in results]
    lags = np.concatenate([np.array(one.lags) for one in watched]) * 1e3
    return {
        "processes": len(results),
        "busiest_second": max(one.busiest_second for one in watched),
        "cpu_seconds": sum(one.cpu_seconds for one in watched),
        "late_p99_ms": float(np.percentile(lags, 99)) if lags.size else 0.0,
        "late_max_ms": float(lags.max(initial=0.0)),
        "megabytes": sum(result.resident_bytes for result in results) / 1e6,
        "connections": _sum(results, "connections"),
    }


def _sum(results: Sequence[Result], name: str) -> int:
    return sum(getattr(result, name) for result in results)


def client(run: Run) -> str:
    """Return two lines about the load generator."""
    found = run.notes["client"]
    return (
        f"client: {found['processes']} processes, the busiest used {run.client_busy:.0%} of a CPU "
        f"({found['busiest_second']:.0%} in one second), event loop late by "
        f"{found['late_p99_ms']:.1f} ms (p99; at most {found['late_max_ms']:.0f} ms);\n"
        f"{found['connections']:,} connections, at most {run.notes['peak_in_flight']:,} requests "
        f"in flight, {found['cpu_seconds']:.1f} s CPU, {found['megabytes']:,.0f} MB"
    )


def warnings(run: Run) -> Iterator[str]:
    """Yield the conditions that limit the value of the results."""
    if reason := run.notes.get("interrupted"):
        unfinished = run.notes.get("unfinished", 0)
        yield f"{reason}; the results leave out {unfinished:,} requests that were in flight"
    client = run.notes["client"]
    if run.client_busy > BUSY:
        yield (
            f"the client used {run.client_busy:.0%} of a CPU and may limit the results: "
            "give more --processes, or use another machine"
        )
    if client["late_p99_ms"] > LATE_MS:
        yield (
            f"the client's event loop was late by {client['late_p99_ms']:.0f} ms (p99; at most "
            f"{client['late_max_ms']:.0f} ms): times to first token may include this delay"
        )
    if count := run.notes.get("counted_as_chunks"):
        yield f"{count:,} responses had no usage: their chunks are counted as tokens"
    if count := run.notes.get("not_streamed"):
        yield f"{count:,} responses were not streamed: all their tokens arrived at once"


def failures(run: Run) -> Iterator[str]:
    """Yield a line for each kind of failure in a run."""
    yield from failure_lines(run.notes.get("failures", {}), "failed")
    yield from failure_lines(run.notes.get("warm_up_failures", {}), "failed in the warm-up")


def failure_lines(found: Failures, title: str) -> Iterator[str]:
    """Yield a line for each kind of failure."""
    for kind, one in found.items():
        first = f", first: {one['first']}" if one["first"] else ""
        yield f"{title}: {one['count']:,} x {kind}{first}"
