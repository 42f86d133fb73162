"""Command `extproc simulate`: the effect of a strategy on a workload, on a simulated vLLM fleet."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from extproc.lab.console import Output
from extproc.lab.engine import profile
from extproc.lab.input_error import InputError
from extproc.lab.measures import comparison, published
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import Summary, block, more, summarize
from extproc.lab.simulation import calibrate
from extproc.lab.simulation.arguments import (
    check_calibration,
    check_outputs,
    is_as_published,
    parser,
)
from extproc.lab.simulation.contenders import contenders, model_of
from extproc.lab.simulation.pool import simulate_all
from extproc.lab.simulation.prompts import Shown
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.workloads.arguments import asked_workload

_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    asked = parser().parse_args(arguments)
    try:
        if asked.calibrate is not None:
            check_calibration(asked)
            return calibrate.run(asked.calibrate, asked.profile)
        return _simulate(asked)
    except InputError as error:
        print(f"extproc simulate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


def _simulate(asked: argparse.Namespace) -> int:
    check_outputs(asked)
    scenarios = _scenarios(asked)
    out = Output(stderr=asked.json == "-")
    runs = _run(scenarios)
    summaries = [summarize(run) for run in runs]
    if asked.json is not None:
        _write_json(asked.json, [comparison.as_json(summary) for summary in summaries])
    if asked.json != "-":
        _print(out, asked, scenarios[0], summaries)
    if asked.plot is not None:
        # This import takes half a second, and most runs do not need it.
        from extproc.lab.measures import charts

        charts.compare(runs, asked.plot)
        out.print(f"drawn: {asked.plot}", markup=False, soft_wrap=True)
    if asked.report is not None:
        _report(asked.report, runs, scenarios[0])
        out.print(f"report: {asked.report}", markup=False, soft_wrap=True)
    if not any(summary.completed for summary in summaries):
        print("extproc simulate: no request was served", file=sys.stderr)
        return 1
    return 0


def _report(path: Path, runs: Sequence[Run], first: Scenario) -> None:
    from extproc.lab.measures.report import Report

    workload = first.workload.name
    source = (
        f"extproc simulate, workload {workload} on {first.replicas} x {first.profile.name}, "
        f"{first.sidecars} sidecar{'s' if first.sidecars > 1 else ''}, seed {first.seed}"
    )
    Report(f"Simulation of {workload}", source, runs).write(path)


def _print(
    out: Output, asked: argparse.Namespace, first: Scenario, summaries: Sequence[Summary]
) -> None:
    for summary in summaries:
        title = f"\n{summary.strategy} on {first.replicas} x {first.profile.name}"
        out.print(title, markup=False)
        out.print(f"{block(summary)}\n{more(summary)}", markup=False)
        if "refused" in summary.notes:
            out.print(f"Refused: {summary.notes['refused']}", markup=False)
        theirs = published.compare(summary) if is_as_published(asked) else None
        if theirs is not None:
            out.print(theirs)
    out.print(comparison.table(summaries))


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
    model = None if asked.models is None else model_of(asked)
    # Use the document's own endpoints, if it lists them: their names are their ring names.
    addresses = model.endpoints or () if model and not asked.replicas else ()
    compared = contenders(asked, model)
    if asked.shown_bytes and not any(one.reads_prompts for one in compared):
        raise InputError("--shown-bytes: none of these strategies reads prompts")
    scenarios = []
    for spec, rule in compared:
        usual = Scenario.of(
            workload,
            engine,
            spec,
            limited_client=limited,
            seed=asked.seed,
            published_rule=rule,
        )
        scenarios.append(_changed(usual, asked, addresses))
    return scenarios


def _changed(usual: Scenario, asked: argparse.Namespace, addresses: Sequence[str]) -> Scenario:
    """Return the usual scenario with the fleet that the arguments ask for."""
    shown = usual.routing.shown
    if asked.shown_bytes:
        shown = Shown(asked.shown_bytes, asked.shown_bytes)
    return replace(
        usual,
        routing=replace(usual.routing, addresses=addresses, shown=shown),
        replicas=len(addresses) or asked.replicas or usual.replicas,
        sidecars=asked.sidecars or usual.sidecars,
        share=None if asked.share is None else asked.share / 1000,
    )


def _write_json(place: str, figures: list[dict[str, Any]]) -> None:
    text = json.dumps({"runs": figures}, indent=2)
    if place == "-":
        print(text)
        return
    Path(place).write_text(text + "\n")
