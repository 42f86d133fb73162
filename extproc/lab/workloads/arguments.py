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
    group = parser.add_argument_group("the workload")
    add = group.add_argument
    add("--workload", required=required, metavar="NAME", help="one of the list below")
    add("--trace", type=Path, metavar="FILE", help="file to replay, for mooncake and access-log")
    add(
        "--pace",
        type=positive(float),
        default=Options.pace,
        metavar="X",
        help="send requests X times as fast (default: %(default)g)",
    )
    add(
        "--burstiness",
        type=positive(float),
        metavar="X",
        help="shape of the gamma distribution of pauses between sessions, for workloads with a "
        "rate; 1 is Poisson, less is burstier",
    )
    add(
        "--at-once",
        type=positive(int),
        metavar="N",
        help="start N sessions together, for workloads with a rate",
    )
    add("--concurrency", type=positive(int), metavar="N", help="concurrent sessions")
    add("--sessions", type=positive(int), metavar="N", help="only the first N")
    add("--seed", type=int, default=Options.seed, metavar="N", help="seed of all random choices")
    add(
        "--agreement",
        type=float,
        default=Options.agreement,
        metavar="SHARE",
        help="access-log: agreement of prompts with one prefix hash, 0 to 1 (default: %(default)g)",
    )
    add(
        "--real-conversations",
        action="store_true",
        help="kubeai-chat: as documented (each prompt once), not as coded",
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
        burstiness=parsed.burstiness,
        at_once=parsed.at_once,
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
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number above 0, or it is too large"
            )
        return value

    return parse
