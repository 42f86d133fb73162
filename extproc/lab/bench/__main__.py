"""Measure the cost of a decision, alone and compared with other setups: `make bench`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from extproc.app import tune_garbage_collector
from extproc.lab.bench import (
    choosing,
    compiled,
    decision,
    flow_control,
    grids,
    page,
    prefix_cache,
    profile,
    rows,
    sharing,
    signal_ways,
    signals,
    signals_through,
    sse,
    status_page,
    targets,
    tracing,
)
from extproc.lab.bench.compiled import Decisions
from extproc.lab.bench.grid import Grid
from extproc.lab.bench.results import Results, machine
from extproc.lab.bench.ways import Way, ways

_WIDTH = 160
"""Columns of the widest table. A narrower terminal would fold its lines."""
_SIGNALS = "next to a fleet whose metrics are read"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    asked = _parser().parse_args(arguments)
    docs = Path("docs")
    if asked.docs and not docs.is_dir():
        print("extproc.lab.bench: the current directory has no directory docs", file=sys.stderr)
        return 2
    tune_garbage_collector()  # as the sidecar does, for what is measured in this process
    results = _measure(ways(asked.peers), asked.quick, Console(stderr=True))
    console = Console(width=max(Console().width, _WIDTH))
    for grid in _shown(results):
        console.print(grid.shown())
    if asked.json:
        results.write(asked.json)
    if asked.docs:
        results.write(docs / page.FIGURES)
        page.write(docs)
    return 1 if results.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="run everything briefly; the figures mean nothing"
    )
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="leave out other routers"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument(
        "--docs", action="store_true", help=f"write docs/{page.PAGE} and docs/{page.FIGURES}"
    )
    return parser


def _measure(compared: Sequence[Way], quick: bool, console: Console) -> Results:
    def progress() -> None:
        console.print(".", end="")

    with TemporaryDirectory(prefix="extproc-bench-") as name:
        directory = Path(name)
        measured = rows.measure(
            compared, rows.QUICK if quick else rows.Effort(), directory, progress
        )
        under_load = asyncio.run(measured)
        crowds = sse.QUICK if quick else sse.CROWDS
        # The rows already start every setup. Streams are held with and without a sidecar.
        holding = [compared[0], compared[-1]] if quick else compared
        held = asyncio.run(sse.measure(holding, crowds, directory, progress))
        decisions, alone = _decisions(quick), _alone(quick)
        with_signals = asyncio.run(_with_signals(directory, quick, progress))
        shared = asyncio.run(_shared(directory, quick))
        # `make faults` also measures the status page, in a browser.
        watched = {} if quick else asyncio.run(status_page.measure(10.0))
    console.print()
    return Results(
        machine=machine(),
        ways={way.name: way.description for way in compared},
        rows=under_load,
        held=held,
        p99_us=decisions.p99_us,
        grids=decisions.grids | alone | with_signals | shared | watched,
    )


def _less(quick: bool) -> int:
    return 100 if quick else 1


def _decisions(quick: bool) -> Decisions:
    less, first = _less(quick), 1 if quick else None
    return compiled.both(8_000 // less, 400 // less, prefix_cache.ENDPOINTS[:first])


def _alone(quick: bool) -> dict[str, Grid]:
    """Measure the other tables that need no Envoy; quickly, only one row of each kind."""
    less, first = _less(quick), 1 if quick else None
    found = {
        "choosing": choosing.grid(400 // less, choosing.ENDPOINTS[:first]),
        "tracing": tracing.grid(20_000 // less),
        "flow_control": flow_control.grid(flow_control.QUEUED[:first]),
        "memory": prefix_cache.memory_grid(1_000_000 // less, prefix_cache.ADDED[:first]),
    }
    for strategy in decision.STRATEGIES:
        name = {"PrefixHash": "prefix_hash", "PrefixCache": "prefix_cache"}[strategy]
        found[f"profile_{name}"] = profile.grid(strategy, profile.REQUESTS // less)
    return found


async def _with_signals(
    directory: Path, quick: bool, progress: Callable[[], object]
) -> dict[str, Grid]:
    seconds = 4.0 / _less(quick)
    alone = await signals.measure(decision.messages(1_000), seconds)
    progress()
    # All fleets take the same path, and each of them starts a sidecar and two generators.
    through = signal_ways.ways()[: 2 if quick else None]
    await signals_through.measure(through, directory, seconds, progress)
    return {
        "signals": signal_ways.grid(f"decisions {_SIGNALS}: in this process", alone),
        "signals_through": signal_ways.grid(f"whole requests {_SIGNALS}: 2 connections", through),
    }


async def _shared(directory: Path, quick: bool) -> dict[str, Grid]:
    less, sidecars = _less(quick), 2 if quick else sharing.SIDECARS
    return await sharing.measure(directory, 4.0 / less, 1_000_000 // less, sidecars)


def _shown(results: Results) -> list[Grid]:
    return [
        *results.grids.values(),
        grids.held(results),
        grids.through(results),
        targets.grid(results),
    ]


if __name__ == "__main__":
    sys.exit(main())
