"""All figures of one run, for JSON, tables and the page."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import TypeAdapter

from extproc.lab.bench.grid import Grid
from extproc.lab.bench.rows import Figures, Row
from extproc.lab.bench.sse import Held
from extproc.lab.stack.envoy import envoy_binary
from extproc.lab.stack.sidecar import compiled_environment


@dataclass(frozen=True)
class Results:
    """Figures of one run on one machine."""

    machine: Mapping[str, str]
    ways: Mapping[str, str]
    """Descriptions of the setups by name."""
    rows: Sequence[Row]
    held: Sequence[Held]
    p99_us: Mapping[str, float]
    """p99 of a decision among 100 endpoints, by strategy."""
    grids: Mapping[str, Grid]
    """Finished tables, by their names in the page's template."""

    def figures(self, way: str, size: str, connections: int) -> Figures | None:
        """Return the figures of a row, if it was measured."""
        for row in self.rows:
            if (row.way, row.size, row.connections) == (way, size, connections):
                return row.figures
        return None

    def streams(self, way: str, streams: int) -> Held | None:
        """Return a setup's figures with that many streams, if they were measured."""
        found = (one for one in self.held if (one.way, one.streams) == (way, streams))
        return next(found, None)

    @property
    def failed(self) -> int:
        """Failed requests and streams of all setups."""
        return sum(row.figures.failed for row in self.rows) + sum(one.failed for one in self.held)

    def write(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.write_bytes(_ADAPTER.dump_json(self, indent=1) + b"\n")


_ADAPTER = TypeAdapter(Results)


def read(path: Path) -> Results:
    """Read the figures from a file."""
    return _ADAPTER.validate_json(path.read_bytes())


def machine() -> dict[str, str]:
    """Describe the machine and the software that the figures depend on."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "Envoy": _envoy_version(),
        "Python": platform.python_version(),
        "sidecars": "compiled, as in the image" if compiled_environment() else "not compiled",
        "grpcio": version("grpcio"),
        "generator": f"our own, on {_loop()}",
    }


def _loop() -> str:
    """Return the event loop that `wire.run` uses."""
    try:
        return f"uvloop {version('uvloop')}"
    except PackageNotFoundError:
        return "asyncio"


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _envoy_version() -> str:
    command = [envoy_binary(), "--version"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found = re.search(r"/(\d+\.\d+\.\d+)/", printed)
    return found[1] if found else "unknown"
