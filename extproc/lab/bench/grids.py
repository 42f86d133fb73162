"""Tables of the measurements through Envoy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.results import Results
from extproc.lab.bench.rows import Row
from extproc.lab.bench.sse import CHUNKS, Held, Memory
from extproc.lab.bench.ways import ALONE

_COSTS = ("requests/s", "ratio", "p50 ms", "p99 ms", "proxy us", "sidecar us", "CPU ratio")
_MEMORY = ("proxy MB", "sidecar MB", "failed")


def through(results: Results) -> Grid:
    """Return every setup under every load; ratios compare with Envoy alone under the same load."""
    rows: list[list[str]] = []
    for (size, connections), group in groupby(
        results.rows, lambda row: (row.size, row.connections)
    ):
        rows += [[]] if rows else []
        rows += _group(f"{size}, {connections}", list(group))
    return Grid(title(results), ["body, connections", "setup", *_COSTS, *_MEMORY], rows, left=2)


def title(results: Results) -> str:
    """Return a title with the CPU use of generator and upstreams, which must not be the limit."""
    generator = max((row.figures.generator_cores for row in results.rows), default=0)
    upstreams = max((row.figures.upstream_cores for row in results.rows), default=0)
    return (
        f"closed loop; the generator ({results.machine['generator']}) used at most {generator:.2f} "
        f"of a core, the upstreams {upstreams:.2f}"
    )


def _group(load: str, rows: Sequence[Row]) -> Iterator[list[str]]:
    alone = next(row.figures for row in rows if row.way == ALONE)
    for row in rows:
        one = row.figures
        yield [
            load,
            row.way,
            f"{one.per_second:,.0f}",
            f"{one.per_second / alone.per_second:.2f}",
            f"{one.p50_ms:.2f}",
            f"{one.p99_ms:.2f}",
            f"{one.proxy_us:,.0f}",
            _or_dash(one.sidecar_us),
            f"{one.cpu_us / alone.cpu_us:.2f}",
            f"{one.proxy_mb:.0f}",
            _or_dash(one.sidecar_mb),
            str(one.failed),
        ]


def held(results: Results) -> Grid:
    """Return the table of open streams."""
    rows: list[list[str]] = []
    for _, group in groupby(results.held, lambda one: one.streams):
        rows += [[]] if rows else []
        rows += [_stream_row(one) for one in group]
    headings = ["streams", "setup", "at once", "proxy MB", "kB per stream", "sidecar MB"]
    headings += ["kB per stream", "proxy us", "sidecar us", "failed"]
    title = f"SSE responses of {CHUNKS} chunks: MB before, at and after; CPU us per stream"
    return Grid(title, headings, rows, left=2)


def _stream_row(one: Held) -> list[str]:
    return [
        f"{one.streams:,}",
        one.way,
        f"{one.at_once:,}",
        *_memory(one.proxy, one.streams),
        *(_memory(one.sidecar, one.streams) if one.sidecar else ["-", "-"]),
        f"{one.proxy_us:,.0f}",
        _or_dash(one.sidecar_us),
        str(one.failed),
    ]


def _memory(memory: Memory, streams: int) -> list[str]:
    megabytes = f"{memory.before:.0f}, {memory.at:.0f}, {memory.after:.0f}"
    return [megabytes, f"{memory.per_stream_kb(streams):.1f}"]


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
