"""Trials: single simulations of the comparison, and the figures kept of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.progress import track

from extproc.core.fleet.weights import WEIGHTS
from extproc.lab.engine import profile
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.prompts import Shown
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.simulation.simulation import simulate
from extproc.lab.simulation.workers import workers
from extproc.lab.tables.ceiling import ceiling
from extproc.lab.tables.contenders import CONTENDERS, ORACLES
from extproc.lab.tables.scenes import SCENES
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.workload import Workload

SHOWN = {
    "16 KiB": Shown(16_384, 16_384),
    "64 KiB": Shown(65_536, 65_536),
}
"""Parts of a body that Envoy shows, in trials that do not show all of it."""

WITHOUT = {
    name: WEIGHTS._replace(**{name: 1.0 if name == "nearly" else 0.0}) for name in WEIGHTS._fields
}
"""PrefixCache's weights, each of them turned off in turn."""

METRICS = (
    *("mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms"),
    *("output_throughput", "hit_rate", "load_spread", "completed", "failed"),
)

CEILING = "ceiling"
"""Name of the hit rate that one unlimited cache for all engines would have."""

_DIGITS = 6
"""Significant digits of each figure: more than a table shows, fewer than processors agree on."""

Figures = dict[str, float]


class Trial(NamedTuple):
    """A strategy in a scene."""

    scene: str
    strategy: str
    seed: int = 0
    sidecars: int | None = None
    """Number of sidecars, if not the workload's own."""

    share: int | None = None
    """Milliseconds after which the sidecars know of each other's requests, if they share them."""

    shown: str | None = None
    """Part of the bodies that Envoy shows, if not the strategy's default."""

    without: str | None = None
    """The weight of PrefixCache that is turned off."""

    @property
    def repeated(self) -> list[Trial]:
        """The trial with each seed of its scene."""
        return [self._replace(seed=seed) for seed in SCENES[self.scene].seeds]

    @property
    def key(self) -> str:
        """Its name in the book."""
        more = [f"{self.sidecars} sidecars"] if self.sidecars else []
        more += [f"shared after {self.share} ms"] if self.share is not None else []
        more += [self.shown] if self.shown else []
        more += [f"without {self.without}"] if self.without else []
        return " | ".join([self.scene, self.strategy, *more, f"seed {self.seed}"])


Task = Trial | str
"""A trial, or the name of a scene whose ceiling is calculated."""


def workload(scene: str, seed: int, trace: Path | None) -> Workload:
    """Return the workload of a scene."""
    known = SCENES[scene]
    file = trace if known.is_recorded else None
    options = Options(seed=seed, trace=file, pace=known.pace, sessions=known.sessions)
    return named(known.workload, options)


def scenario(trial: Trial, trace: Path | None = None) -> Scenario:
    """Return the scenario of a trial."""
    known = SCENES[trial.scene]
    contender = (CONTENDERS | ORACLES)[trial.strategy]
    asked = workload(trial.scene, trial.seed, trace)
    replicas = known.replicas or asked.replicas
    engine, others = known.engines(asked.profile, replicas)
    usual = Scenario.of(
        asked,
        engine,
        contender.load_balancing,
        seed=trial.seed,
        published_rule=contender.published_rule,
    )
    shown = SHOWN[trial.shown] if trial.shown else usual.routing.shown
    weights = WITHOUT[trial.without] if trial.without else None
    return replace(
        usual,
        routing=replace(usual.routing, shown=shown, weights=weights),
        replicas=replicas,
        sidecars=trial.sidecars or usual.sidecars,
        share=None if trial.share is None else trial.share / 1000,
        events=known.events,
        slow=known.slow,
        others=others,
    )


def outcome(trial: Trial, trace: Path | None = None) -> Figures:
    """Return the figures of a trial, without unknown ones."""
    return rounded(summarize(simulate(scenario(trial, trace))))


def rounded(summary: Summary) -> Figures:
    """Return the figures to keep, without unknown ones."""
    known = {metric: summary.metric(metric) for metric in METRICS}
    return {
        name: float(f"{value:.{_DIGITS}g}") for name, value in known.items() if value is not None
    }


def highest(scene: str, trace: Path | None = None) -> Figures:
    """Return the ceiling of a scene, as the mean over its seeds."""
    block = profile.named(workload(scene, 0, trace).profile).block_size
    shares = [ceiling(workload(scene, seed, trace), block) for seed in SCENES[scene].seeds]
    return {CEILING: round(fmean(shares), _DIGITS)}


def key(task: Task) -> str:
    """Return the name of a task in the book."""
    return f"{task} | {CEILING}" if isinstance(task, str) else task.key


def try_all(
    tasks: Collection[Task], trace: Path | None, on_result: Callable[[Task, Figures], None]
) -> None:
    """Run all tasks on all cores; call `on_result` with each result."""
    with workers(len(tasks)) as pool:
        runs = {pool.submit(_work, task, trace): task for task in tasks}
        for run in track(as_completed(runs), "simulating", total=len(runs)):
            on_result(runs[run], run.result())


def _work(task: Task, trace: Path | None) -> Figures:
    return highest(task, trace) if isinstance(task, str) else outcome(task, trace)
