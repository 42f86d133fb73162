"""Command `extproc simulate`: the effect of a strategy on a workload, on a simulated vLLM fleet."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.commands.console import Parser
from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec, ModelSpec
from extproc.core.schema.load_balancing import StrategyName
from extproc.core.strategies import build
from extproc.lab import published_rules
from extproc.lab.console import Output
from extproc.lab.engine import profile
from extproc.lab.input_error import InputError
from extproc.lab.measures import charts, comparison, published
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import block, more, summarize
from extproc.lab.simulation.pool import simulate_all
from extproc.lab.simulation.prompts import Shown
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.sidecars import SESSION_HEADER
from extproc.lab.workloads.arguments import add_workload, asked_workload, listing, positive

STRATEGIES: tuple[str, ...] = tuple(one for one in get_args(StrategyName) if one != "Chain")
"""Strategies that need no parameters."""

_DEFAULT_STRATEGIES = ("Random", "LeastLoad", "PrefixHash")

_INTERRUPTED = 130


class _Contender(NamedTuple):
    """A strategy or a published rule to compare."""

    load_balancing: LoadBalancingSpec
    published_rule: str = ""

    @property
    def reads_prompts(self) -> bool:
        """True if the shown part of a body makes a difference."""
        signals = Signals(lambda: 0.0)
        return (
            bool(self.published_rule)
            or build(self.load_balancing, Random(0), signals).reads_prompts
        )


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.calibrate is not None:
            _check_calibration(asked)
            from extproc.lab.simulation import calibrate  # imports scipy, which takes a second

            return calibrate.run(asked.calibrate, asked.profile)
        return _simulate(asked)
    except InputError as error:
        print(f"extproc simulate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> Parser:
    parser = Parser(
        prog="extproc simulate",
        description="Simulates a fleet of vLLM engines behind this product's own strategies and "
        "ledger, and prints what vLLM's benchmark_serving.py would: one block for each strategy, "
        "a comparison, and the published figures where there are any.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{listing()}\n\nprofiles:\n  {', '.join(profile.names())}",
    )
    add_workload(parser, required=False)
    add = parser.add_argument_group("the fleet and what is said of it").add_argument
    add(
        "--strategy",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"one or several of {', '.join(STRATEGIES)} "
        f"(default: {' '.join(_DEFAULT_STRATEGIES)}, or that of --models); "
        f"published rules, for comparison: {', '.join(published_rules.names())}",
    )
    add("--replicas", type=positive(int), metavar="N", help="engines (default: the workload's own)")
    add("--profile", metavar="NAME|FILE", help="the engine (default: the workload's own)")
    add(
        "--models",
        type=Path,
        metavar="FILE",
        help="take loadBalancing, and endpoints where it lists them, from a models document",
    )
    add("--model", metavar="NAME", help="of that document (default: its first)")
    add(
        "--sidecars",
        type=positive(int),
        metavar="N",
        help="each sees only its own load (default: the workload's own number, mostly one)",
    )
    add(
        "--shown-bytes",
        type=positive(int),
        metavar="N",
        help="so much of each body is shown to strategies that read prompts (default: as "
        "envoy/envoy.yaml has it; to published rules everything)",
    )
    add(
        "--ideal-client",
        action="store_true",
        help="leave out the limits of the client that measured the published figures",
    )
    add(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="the figures for programs; without FILE instead of the tables",
    )
    add("--plot", type=Path, metavar="FILE.png", help="draw a comparison")
    add(
        "--calibrate",
        type=Path,
        metavar="TABLE.yaml",
        help="fit a profile to a measured table, starting from --profile; prints the profile",
    )
    return parser


def _check_calibration(asked: argparse.Namespace) -> None:
    """Reject options that the table of a calibration contains."""
    options = ("workload", "strategy", "replicas", "models", "sidecars", "shown_bytes")
    for option in (*options, "json", "plot"):
        if getattr(asked, option) is not None:
            name = option.replace("_", "-")
            raise InputError(f"--calibrate takes no --{name}: that stands in its table")


def _simulate(asked: argparse.Namespace) -> int:
    _check_places(asked)
    scenarios = _scenarios(asked)
    out = Output(stderr=asked.json == "-")
    runs = _run(scenarios)
    summaries = [summarize(run) for run in runs]
    if asked.json is not None:
        _write_json(asked.json, [comparison.as_json(summary) for summary in summaries])
    if asked.json != "-":
        for summary in summaries:
            title = f"\n{summary.strategy} on {scenarios[0].replicas} x {scenarios[0].profile.name}"
            out.print(title, markup=False)
            out.print(f"{block(summary)}\n{more(summary)}", markup=False)
            if "refused" in summary.notes:
                out.print(f"Refused: {summary.notes['refused']}", markup=False)
            beside = published.beside(summary) if _is_as_published(asked) else None
            if beside is not None:
                out.print(beside)
        out.print(comparison.table(summaries))
    if asked.plot is not None:
        charts.compare(runs, asked.plot)
        out.print(f"drawn: {asked.plot}", markup=False, soft_wrap=True)
    if not any(summary.completed for summary in summaries):
        print("extproc simulate: no request was served", file=sys.stderr)
        return 1
    return 0


def _is_as_published(asked: argparse.Namespace) -> bool:
    """True if no option makes the published figures incomparable."""
    changes = ("replicas", "profile", "models", "sidecars", "concurrency", "sessions")
    return asked.pace == 1 and not any(getattr(asked, one) is not None for one in changes)


def _run(scenarios: Sequence[Scenario]) -> list[Run]:
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        return simulate_all(scenarios)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks = [
            bars.add_task(one.routing.strategy, total=one.workload.requests) for one in scenarios
        ]
        return simulate_all(scenarios, lambda number, more: bars.advance(tasks[number], more))


def _scenarios(asked: argparse.Namespace) -> list[Scenario]:
    if asked.workload is None:
        raise InputError("give --workload NAME (see extproc simulate --help)")
    workload = asked_workload(asked)
    engine = profile.named(asked.profile or workload.profile)
    limited = workload.single_threaded_client and not asked.ideal_client
    model = None if asked.models is None else _model(asked)
    # Use the document's own endpoints, if it lists them: their names are their ring names.
    addresses = model.endpoints or () if model and not asked.replicas else ()
    contenders = _contenders(asked, model)
    if asked.shown_bytes and not any(one.reads_prompts for one in contenders):
        raise InputError("--shown-bytes: none of these strategies reads prompts")
    scenarios = []
    for spec, published_rule in contenders:
        usual = Scenario.of(
            workload,
            engine,
            spec,
            limited_client=limited,
            seed=asked.seed,
            published_rule=published_rule,
        )
        shown = usual.routing.shown
        if asked.shown_bytes:
            shown = Shown(asked.shown_bytes, asked.shown_bytes)
        scenarios.append(
            replace(
                usual,
                routing=replace(usual.routing, addresses=addresses, shown=shown),
                replicas=len(addresses) or asked.replicas or usual.replicas,
                sidecars=asked.sidecars or usual.sidecars,
            )
        )
    return scenarios


def _contenders(asked: argparse.Namespace, model: ModelSpec | None) -> list[_Contender]:
    """Return the strategies to compare."""
    base = model.load_balancing if model else LoadBalancingSpec()
    if asked.model is not None and model is None:
        raise InputError("--model is a model of the document that --models names")
    if base.prefix_hash.headers and SESSION_HEADER not in base.prefix_hash.headers:
        raise InputError(
            f"{asked.models}: requests are simulated with one header, {SESSION_HEADER}, so "
            f"'prefixSource' cannot be {base.prefix_hash.prefix_source}"
        )
    if asked.strategy is None:
        if model is not None:
            return [_Contender(base)]
        return [_contender(name, base) for name in _DEFAULT_STRATEGIES]
    wanted = [name for text in asked.strategy for name in text.split(",") if name]
    if not wanted:
        raise InputError("--strategy: name one")
    known = (*STRATEGIES, *published_rules.names())
    for name in wanted:
        if name not in known and name != base.strategy:
            raise InputError(f"--strategy: {name!r} is not one of {', '.join(known)}")
    return [_contender(name, base) for name in wanted]


def _contender(name: str, base: LoadBalancingSpec) -> _Contender:
    """Return a strategy with the parameters of `base`, or a published rule."""
    if name in published_rules.names():
        return _Contender(base, name)
    if name == base.strategy:
        return _Contender(base)
    return _Contender(base.model_copy(update={"strategy": name, "chain": ()}))


def _model(asked: argparse.Namespace) -> ModelSpec:
    try:
        document = parse(asked.models.read_bytes())
    except OSError as error:
        raise InputError(f"{asked.models}: {error.strerror}") from None
    except DocumentError as error:
        raise InputError("\n".join(f"{asked.models}: {one}" for one in error.problems)) from None
    models = [model for model in document.models if model.split is None]
    found = [model for model in models if asked.model in (None, model.name)]
    if not found:
        names = ", ".join(model.name for model in models)
        raise InputError(f"{asked.models}: there is no model {asked.model!r}; there are {names}")
    return found[0]


def _check_places(asked: argparse.Namespace) -> None:
    """Check the output files before the simulation, not after it."""
    for place in (asked.plot, asked.json and Path(asked.json)):
        if place is None or (place == Path("-") and place != asked.plot):
            continue
        target = place if place.exists() else place.absolute().parent
        if place.is_dir() or str(place) == "-":
            raise InputError(f"{place}: is no name of a file")
        if not target.exists():
            raise InputError(f"{place}: No such file or directory")
        if not os.access(target, os.W_OK):
            raise InputError(f"{place}: Permission denied")


def _write_json(place: str, figures: list[dict[str, Any]]) -> None:
    text = json.dumps({"runs": figures}, indent=2)
    if place == "-":
        print(text)
        return
    Path(place).write_text(text + "\n")
