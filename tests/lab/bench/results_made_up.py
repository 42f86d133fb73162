"""Made-up results."""

from __future__ import annotations

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.results import Results
from extproc.lab.bench.rows import Figures, Row
from extproc.lab.bench.sse import Held, Memory
from extproc.lab.bench.targets import FAST, PLAIN
from extproc.lab.bench.ways import ALONE, LUA, SGLANG, VLLM

GRIDS = (
    *("decision", "choosing", "prefix_cache", "memory", "profile_prefix_hash"),
    *("profile_prefix_cache", "signals", "signals_through"),
)
SIDECARS = (PLAIN, FAST)


def figures(per_second: float, proxy_us: float, sidecar_us: float | None) -> Figures:
    return Figures(per_second, 0.5, 1.5, proxy_us, sidecar_us, 70.0, None, 0.2, 0.3, failed=0)


WITH_ALL = {
    ALONE: figures(10_000, 60, None),
    LUA: figures(8_000, 80, None),
    PLAIN: figures(2_000, 300, 600),
    FAST: figures(6_000, 100, 60),
    VLLM: figures(2_000, 400, None),
    SGLANG: figures(7_000, 200, None),
}


def made_up(*without: str) -> Results:
    """Return a run of all setups except some."""
    ways = {name: one for name, one in WITH_ALL.items() if name not in without}
    loads = [("1 kB", 1), ("1 kB", 32), ("32 kB", 32), ("2 MB", 32)]
    memory = Memory(50.0, 90.0, 70.0)
    return Results(
        machine={"cores": "2", "generator": "our own"},
        ways=dict.fromkeys(ways, "a description"),
        rows=[Row(way, *load, ways[way]) for load in loads for way in ways],
        held=[
            Held(way, 8_000, 8_000, memory, memory if way in SIDECARS else None, 2e3, 6e2, 30.0, 0)
            for way in ways
        ],
        p99_us={"PrefixHash": 20.0, "PrefixCache": 101.0},
        grids={name: Grid(name, ["a", "b"], [["x", "1"], [], ["y", "2"]]) for name in GRIDS},
    )
