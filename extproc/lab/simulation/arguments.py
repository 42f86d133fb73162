"""Command-line arguments of `extproc simulate`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from extproc.commands.console import Parser
from extproc.lab import oracle, published_rules
from extproc.lab.engine import profile
from extproc.lab.input_error import InputError
from extproc.lab.simulation.contenders import DEFAULT_STRATEGIES, STRATEGIES
from extproc.lab.workloads.arguments import add_workload, listing, positive


def parser() -> Parser:
    """Return the parser of `extproc simulate`."""
    found = Parser(
        prog="extproc simulate",
        description="Simulate a fleet of vLLM engines behind this product's own strategies and "
        "ledger. Print one block of figures for each strategy, as vLLM's benchmark_serving.py "
        "does, the published figures if there are any, and a comparison.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{listing()}\n\nprofiles:\n  {', '.join(profile.names())}",
        examples={
            "extproc simulate --workload kubeai-chat-800": "compare the default strategies",
            "extproc simulate --workload kubeai-chat-800 --strategy PrefixHash PrefixCache": (
                "compare two strategies"
            ),
            "extproc simulate --workload kubeai-chat-800 --models models.yaml": (
                "try your own settings"
            ),
        },
        exits={
            0: "requests were served",
            1: "no request was served",
            2: "bad arguments",
            130: "Ctrl-C",
        },
    )
    add_workload(found, required=False)
    fleet = found.add_argument_group("the fleet")
    _add_strategies(fleet)
    _add_fleet(fleet)
    _add_output(found)
    return found


def _add_strategies(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--strategy",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or more of {', '.join(STRATEGIES)} "
        f"(default: {' '.join(DEFAULT_STRATEGIES)}, or that of --models); "
        f"published rules, for comparison: {', '.join(published_rules.names())}; "
        f"{oracle.NAME}, which knows the true state of all engines, or {oracle.NAME}:RULE with "
        f"one of its rules {', '.join(oracle.RULE_NAMES)}; "
        f"{oracle.NAME}:RULE:{oracle.UNSYNCHRONIZED} does not know when the present steps end",
    )


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--replicas", type=positive(int), metavar="N", help="engines (default: the workload's own)")
    add("--profile", metavar="NAME|FILE", help="the engine (default: the workload's own)")
    add(
        "--models",
        type=Path,
        metavar="FILE",
        help="models document with the loadBalancing block and, if listed, the endpoints",
    )
    add("--model", metavar="NAME", help="model of that document (default: its first)")
    add(
        "--sidecars",
        type=positive(int),
        metavar="N",
        help="sidecars, each of which gets a random part of the requests (default: the workload's "
        "own)",
    )
    add(
        "--share",
        type=_milliseconds,
        metavar="MS",
        help="milliseconds after which the sidecars know of each other's requests, as with "
        "`extproc serve --shared-state` (default: they share no state)",
    )
    add(
        "--shown-bytes",
        type=positive(int),
        metavar="N",
        help="bytes of each body that strategies can read (default: as in envoy/envoy.yaml; "
        "published rules read whole bodies)",
    )
    add(
        "--ideal-client",
        action="store_true",
        help="simulate a client without the limits of the one that measured the published figures",
    )


def _add_output(found: Parser) -> None:
    add = found.add_argument_group("the output").add_argument
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write the figures as JSON; without FILE print them instead of the tables",
    )
    add("--plot", type=Path, metavar="FILE.png", help="draw a comparison")
    add("--report", type=Path, metavar="FILE.html", help="write charts and figures as a web page")
    add(
        "--calibrate",
        type=Path,
        metavar="TABLE.yaml",
        help="fit a profile to a measured table, starting from --profile, and print it",
    )


def _milliseconds(text: str) -> float:
    """Return a number of milliseconds, from 0 to a minute."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 60_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds up to 60,000")
    return value


def check_calibration(asked: argparse.Namespace) -> None:
    """Reject options that the table of a calibration contains."""
    options = ("workload", "strategy", "replicas", "models", "sidecars", "share", "shown_bytes")
    for option in (*options, "json", "plot", "report"):
        if getattr(asked, option) is not None:
            name = option.replace("_", "-")
            raise InputError(f"--calibrate does not take --{name}: set it in the table")


def check_outputs(asked: argparse.Namespace) -> None:
    """Check the output files before the simulation, not after it."""
    for place in (asked.plot, asked.report, asked.json and Path(asked.json)):
        if place is None or (place == Path("-") and place not in (asked.plot, asked.report)):
            continue
        target = place if place.exists() else place.absolute().parent
        if place.is_dir() or str(place) == "-":
            raise InputError(f"{place}: is not a file name")
        if not target.exists():
            raise InputError(f"{place}: No such file or directory")
        if not os.access(target, os.W_OK):
            raise InputError(f"{place}: Permission denied")


def is_as_published(asked: argparse.Namespace) -> bool:
    """True if no option makes the published figures incomparable."""
    changes = ("replicas", "profile", "models", "sidecars", "share", "concurrency", "sessions")
    arrivals = ("burstiness", "at_once")
    unchanged = all(getattr(asked, one) is None for one in (*changes, *arrivals))
    return asked.pace == 1 and unchanged
