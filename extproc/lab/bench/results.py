"""All figures of one run: what is written as JSON, and what the tables and the page are made of."""

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
    """Of one run on one machine."""

    machine: Mapping[str, str]
    ways: Mapping[str, str]
    """What each is, by name."""
    rows: Sequence[Row]
    held: Sequence[Held]
    p99_us: Mapping[str, float]
    """The slowest of a hundred decisions among 100 endpoints, by strategy."""
    grids: Mapping[str, Grid]
    """What is only shown, by the name that the page has for it."""

    def figures(self, way: str, size: str, connections: int) -> Figures | None:
        """Of a row, if it was measured."""
        for row in self.rows:
            if (row.way, row.size, row.connections) == (way, size, connections):
                return row.figures
        return None

    def streams(self, way: str, streams: int) -> Held | None:
        """Of a way with so many, if it was measured."""
        found = (one for one in self.held if (one.way, one.streams) == (way, streams))
        return next(found, None)

    @property
    def failed(self) -> int:
        """Requests and streams, all ways together."""
        return sum(row.figures.failed for row in self.rows) + sum(one.failed for one in self.held)

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_bytes(_ADAPTER.dump_json(self, indent=1) + b"\n")


_ADAPTER = TypeAdapter(Results)


def read(path: Path) -> Results:
    """What `write` wrote."""
    return _ADAPTER.validate_json(path.read_bytes())


def machine() -> dict[str, str]:
    """What the figures hang on."""
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
    """What `wire.run` takes."""
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
