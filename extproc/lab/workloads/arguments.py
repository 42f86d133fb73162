"""Command-line arguments that choose a workload, shared by all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from extproc.lab.workloads import Options, described, named
from extproc.lab.workloads.workload import Workload

_MOST = 1_000_000
"""Largest number for any count."""


def add_workload(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the arguments to a parser."""
    group = parser.add_argument_group("what is asked")
    add = group.add_argument
    add("--workload", required=required, metavar="NAME", help="see below")
    add("--trace", type=Path, metavar="FILE", help="for the workloads that replay a file")
    add(
        "--pace",
        type=positive(float),
        default=Options.pace,
        metavar="X",
        help="requests come X times as fast (default: %(default)g)",
    )
    add("--concurrency", type=positive(int), metavar="N", help="sessions at a time")
    add("--sessions", type=positive(int), metavar="N", help="only the first N")
    add("--seed", type=int, default=Options.seed, metavar="N", help="of all that is drawn")
    add(
        "--agreement",
        type=float,
        default=Options.agreement,
        metavar="SHARE",
        help="access-log: how far prompts of one prefix hash agree, 0 to 1 (default: %(default)g)",
    )
    add(
        "--real-conversations",
        action="store_true",
        help="kubeai-chat: as documented, each prompt once, not as coded",
    )


def listing() -> str:
    """Return the list of workloads for the end of a command's help."""
    lines = (f"  {name:<20} {text}" for name, text in described().items())
    return "workloads:\n" + "\n".join(lines)


def asked_workload(parsed: argparse.Namespace) -> Workload:
    """Return the chosen workload. Raises WorkloadError."""
    options = Options(
        seed=parsed.seed,
        trace=parsed.trace,
        pace=parsed.pace,
        concurrency=parsed.concurrency,
        sessions=parsed.sessions,
        replicas=getattr(parsed, "replicas", None),
        real_conversations=parsed.real_conversations,
        agreement=parsed.agreement,
    )
    return named(parsed.workload, options)


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return an argument type for numbers above 0."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        # NaN and infinity are not valid either.
        if not 0 < value <= (_MOST if kind is int else 1e9):
            raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, or too large")
        return value

    return parse
