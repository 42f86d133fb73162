"""The decision alone in the compiled package, measured in a process that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from pydantic import TypeAdapter

from extproc.app import tune_garbage_collector
from extproc.compiled import COMPILED
from extproc.lab.bench import decision, prefix_cache
from extproc.lab.bench.grid import Grid
from extproc.lab.stack.sidecar import compiled_environment

_ADAPTER = TypeAdapter(dict[str, Grid])


def both(rounds: int, times: int, endpoints: Sequence[int]) -> dict[str, Grid]:
    """Measure this process, and the compiled package if there is one.

    `endpoints` are the numbers of endpoints on which PrefixCache decides.
    """
    found = _grids(rounds, times, endpoints)
    return found | (_compiled(rounds, times, endpoints) if compiled_environment() else {})


def _grids(rounds: int, times: int, endpoints: Sequence[int]) -> dict[str, Grid]:
    return {
        "decision": decision.grid(rounds),
        "prefix_cache": prefix_cache.grid(times, endpoints),
    }


def _compiled(rounds: int, times: int, endpoints: Sequence[int]) -> dict[str, Grid]:
    command = [sys.executable, "-m", "extproc.lab.bench.compiled"]
    command += map(str, (rounds, times, *endpoints))
    environment = {**os.environ, **compiled_environment()}
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout
    grids = _ADAPTER.validate_json(printed).items()
    return {
        f"{name}_compiled": Grid(f"compiled: {grid.title}", grid.headings, grid.rows, grid.left)
        for name, grid in grids
    }


def main(arguments: Sequence[str]) -> None:
    """Run the command line of the process with the compiled package."""
    assert COMPILED, "$EXTPROC_COMPILED holds no compiled package"
    rounds, times, *endpoints = map(int, arguments)
    tune_garbage_collector()
    sys.stdout.buffer.write(_ADAPTER.dump_json(_grids(rounds, times, endpoints)))


if __name__ == "__main__":
    main(sys.argv[1:])
