"""A CPU profile of a decision: `make profile`.

The profiler adds time to every call, most of all to short ones. So the order of the functions
matters; `make bench` has the times.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from cProfile import Profile
from pathlib import Path
from types import CodeType

from rich.console import Console

import extproc
from extproc.lab.bench.decision import STRATEGIES, DecisionPath
from extproc.lab.bench.grid import Grid

ENDPOINTS = 8
SIZE = 1_000
REQUESTS = 5_000
_SHOWN = 25

_ADDRESS = re.compile(" at 0x[0-9a-f]+")
_ROOT = Path(extproc.__file__).parents[1]


def grid(strategy: str, requests: int = REQUESTS, size: int = SIZE) -> Grid:
    """Return the functions with the most own time: decode, decide, encode, release."""
    path = DecisionPath(strategy, ENDPOINTS, size)
    path.run(requests // 10)
    profile = Profile()
    profile.enable()
    path.run(requests)
    profile.disable()
    entries = sorted(profile.getstats(), key=lambda one: one.inlinetime, reverse=True)
    rows = [
        [
            _name(entry.code),
            f"{entry.callcount / requests:.1f}",
            f"{entry.inlinetime / requests * 1e6:.2f}",
            f"{entry.totaltime / requests * 1e6:.2f}",
        ]
        for entry in entries[:_SHOWN]
    ]
    title = f"{strategy}, {ENDPOINTS} endpoints, {size:,} bytes: functions by their own time"
    return Grid(title, ["function", "calls per request", "own us", "with callees us"], rows)


def _name(code: str | CodeType) -> str:
    if isinstance(code, str):
        return _ADDRESS.sub("", code.strip("<>"))  # implemented in C
    path = Path(code.co_filename)
    file = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else Path(path.name)
    return f"{file}: {code.co_qualname}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of `make profile`."""
    parser = argparse.ArgumentParser(prog="python -m extproc.lab.bench.profile")
    parser.add_argument("strategy", nargs="*", help=f"default: {', '.join(STRATEGIES)}")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of a body (%(default)s)")
    asked = parser.parse_args(arguments)
    console = Console(width=max(Console().width, 120))
    for strategy in asked.strategy or STRATEGIES:
        console.print(grid(strategy, asked.requests, asked.size).shown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
