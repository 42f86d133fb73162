"""The decision alone in the compiled package, measured in a process that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import TypeAdapter

from extproc.app import tune_garbage_collector
from extproc.compiled import COMPILED
from extproc.lab.bench import decision, prefix_cache
from extproc.lab.bench.grid import Grid
from extproc.lab.stack.sidecar import compiled_environment

_P99_ENDPOINTS = 100


class Decisions(NamedTuple):
    """The figures of decisions alone."""

    grids: dict[str, Grid]

    p99_us: dict[str, float]
    """The p99 by strategy, with the compiled package if there is one, as in the sidecars."""


_ADAPTER = TypeAdapter(Decisions)


def both(rounds: int, times: int, endpoints: Sequence[int]) -> Decisions:
    """Measure this process, and the compiled package if there is one.

    `endpoints` are the numbers of endpoints on which PrefixCache decides.
    """
    found = _decisions(rounds, times, endpoints)
    if not compiled_environment():
        return found
    compiled = _compiled(rounds, times, endpoints)
    return Decisions(found.grids | compiled.grids, compiled.p99_us)


def _decisions(rounds: int, times: int, endpoints: Sequence[int]) -> Decisions:
    grids = {
        "decision": decision.grid(rounds),
        "prefix_cache": prefix_cache.grid(times, endpoints),
    }
    choices = 5 * rounds
    p99_us = {
        strategy: decision.p99_microseconds(strategy, _P99_ENDPOINTS, choices)
        for strategy in decision.STRATEGIES
    }
    return Decisions(grids, p99_us)


def _compiled(rounds: int, times: int, endpoints: Sequence[int]) -> Decisions:
    command = [sys.executable, "-m", "extproc.lab.bench.compiled"]
    command += map(str, (rounds, times, *endpoints))
    environment = {**os.environ, **compiled_environment()}
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout
    found = _ADAPTER.validate_json(printed)
    grids = {
        f"{name}_compiled": Grid(f"compiled: {grid.title}", grid.headings, grid.rows, grid.left)
        for name, grid in found.grids.items()
    }
    return Decisions(grids, found.p99_us)


def main(arguments: Sequence[str]) -> None:
    """Run the command line of the process with the compiled package."""
    assert COMPILED, "$EXTPROC_COMPILED holds no compiled package"
    rounds, times, *endpoints = map(int, arguments)
    tune_garbage_collector()
    sys.stdout.buffer.write(_ADAPTER.dump_json(_decisions(rounds, times, endpoints)))


if __name__ == "__main__":
    main(sys.argv[1:])
