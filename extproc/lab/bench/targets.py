"""Targets of the benchmark and a verdict on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.results import Results
from extproc.lab.bench.rows import Figures
from extproc.lab.bench.ways import ALONE, LUA, SGLANG, TRANSPORTS, VLLM, of_transport
from extproc.lab.tables.markdown import number, yes

PLAIN, FAST = (of_transport(transport) for transport in TRANSPORTS)

_MISSING = "not measured"


@dataclass(frozen=True)
class Target:
    """A figure and its limit."""

    what: str
    limit: float
    value: Callable[[Results], float | None]
    """Returns None if a figure that it needs was not measured."""
    at_most: bool = True

    def holds(self, value: float) -> bool:
        """True if the value meets the target."""
        return value <= self.limit if self.at_most else value >= self.limit


def _usual(results: Results, way: str) -> Figures | None:
    return results.figures(way, "1 kB", 32)


def _fast_us(results: Results) -> float | None:
    fast = _usual(results, FAST)
    return fast.sidecar_us if fast else None


def _of_grpcio(results: Results) -> float | None:
    ours, plain = _fast_us(results), _usual(results, PLAIN)
    return ours / plain.sidecar_us if ours and plain and plain.sidecar_us else None


def _throughput(results: Results) -> float | None:
    fast, lua = _usual(results, FAST), _usual(results, LUA)
    return fast.per_second / lua.per_second if fast and lua else None


def _cpu_of(peer: str) -> Callable[[Results], float | None]:
    def ratio(results: Results) -> float | None:
        fast, other = _usual(results, FAST), _usual(results, peer)
        return fast.cpu_us / other.cpu_us if fast and other else None

    return ratio


def _large_body(results: Results) -> float | None:
    large, small = (results.figures(FAST, size, 32) for size in ("2 MB", "32 kB"))
    if large and small and large.sidecar_us and small.sidecar_us:
        return large.sidecar_us / small.sidecar_us
    return None


def _added_ms(results: Results) -> float | None:
    fast, alone = (results.figures(way, "1 kB", 1) for way in (FAST, ALONE))
    return fast.p50_ms - alone.p50_ms if fast and alone else None


def _streams_mb(results: Results) -> float | None:
    held = results.streams(FAST, 8_000)
    # With fewer streams the memory means nothing.
    if held is None or held.sidecar is None or held.at_once < held.streams:
        return None
    return held.sidecar.at


def _p99(strategy: str) -> Callable[[Results], float | None]:
    return lambda results: results.p99_us.get(strategy)


TARGETS = (
    Target("sidecar CPU per request, fast transport, us", 60, _fast_us),
    Target("the same / the same on grpcio", 1 / 6, _of_grpcio),
    Target(f"requests/s: {FAST} / {LUA}", 0.75, _throughput, at_most=False),
    Target(f"CPU: {FAST} / {SGLANG}", 0.9, _cpu_of(SGLANG)),
    Target(f"CPU: {FAST} / {VLLM}", 0.5, _cpu_of(VLLM)),
    Target("sidecar CPU: 2 MB body / 32 kB body", 1.5, _large_body),
    Target("p50 added to Envoy alone, 1 connection, ms", 0.35, _added_ms),
    Target("sidecar memory with 8,000 streams, MB", 100, _streams_mb),
    Target("p99 of a choice among 100 endpoints, PrefixHash, us", 100, _p99("PrefixHash")),
    Target("p99 of a choice among 100 endpoints, PrefixCache, us", 100, _p99("PrefixCache")),
)


def grid(results: Results) -> Grid:
    """Return the table of targets."""
    rows = [_row(target, target.value(results)) for target in TARGETS]
    title = "targets: 1 kB and 32 connections unless the row says otherwise"
    return Grid(title, ["", "measured", "target", "met"], rows)


def _row(target: Target, value: float | None) -> list[str]:
    limit = f"{'<=' if target.at_most else '>='} {number(target.limit)}"
    if value is None:
        return [target.what, _MISSING, limit, ""]
    return [target.what, number(value), limit, yes(target.holds(value))]
