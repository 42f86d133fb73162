"""The run that the workers' figures make, and what is to be said of its worth."""

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
"""Share of its time a client may work before its figures are as much of itself."""

LATE_MS = 20.0
"""How late (99th percentile) its loop may be: it would show in the times to first token."""


Failures = dict[str, dict[str, Any]]
"""By kind: `count`, and what was said `first`."""


def run_of(collected: Collected, workload: str, strategy: str, secrets: Sequence[str] = ()) -> Run:
    """All results as one run. What a server said may quote secrets of ours; they are left out."""
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
    """What failed, without our secrets."""
    found = records.failures_of([result.records for result in results])
    for kind in found.values():
        for secret in secrets:
            kind["first"] = kind["first"].replace(secret, "***")
        # Cut only now: half a secret would not be found.
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
    """What the load generator knows of itself."""
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
    """How the load generator fared, in a line or two."""
    found = run.notes["client"]
    return (
        f"client: {found['processes']} processes, the busiest at work {run.client_busy:.0%} of the "
        f"time ({found['busiest_second']:.0%} of a second), late by {found['late_p99_ms']:.1f} ms "
        f"(99th percentile, {found['late_max_ms']:.0f} ms at most);\n"
        f"{found['connections']:,} connections, {run.notes['peak_in_flight']:,} requests in flight "
        f"at most, {found['cpu_seconds']:.1f} s CPU, {found['megabytes']:,.0f} MB"
    )


def warnings(run: Run) -> Iterator[str]:
    """What whoever reads the figures must know."""
    if reason := run.notes.get("interrupted"):
        unfinished = run.notes.get("unfinished", 0)
        yield f"{reason}; {unfinished:,} requests under way are in none of the figures"
    client = run.notes["client"]
    if run.client_busy > BUSY:
        yield (
            f"the client was at work {run.client_busy:.0%} of the time: figures may be the "
            "client's (more --processes, or another machine)"
        )
    if client["late_p99_ms"] > LATE_MS:
        yield (
            f"the client was late by {client['late_p99_ms']:.0f} ms at times (99th percentile), "
            f"by {client['late_max_ms']:.0f} ms at most: so may its times to first token be"
        )
    if count := run.notes.get("counted_as_chunks"):
        yield f"{count:,} answers came without usage: their chunks are counted as tokens"
    if count := run.notes.get("not_streamed"):
        yield f"{count:,} answers were not streamed: all their tokens came at once"


def failures(run: Run) -> Iterator[str]:
    """A line for each kind."""
    yield from told(run.notes.get("failures", {}), "failed")
    yield from told(run.notes.get("warm_up_failures", {}), "failed in the warm-up")


def told(found: Failures, what: str) -> Iterator[str]:
    """A line for each kind of some failures."""
    for kind, one in found.items():
        said = f", first: {one['first']}" if one["first"] else ""
        yield f"{what}: {one['count']:,} x {kind}{said}"
