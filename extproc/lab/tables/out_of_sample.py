"""The page docs/out-of-sample.md: PrefixCache and published rules on randomly drawn workloads.

docs/out-of-sample.json keeps the results, and the page is made from that file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from rich.progress import track

from extproc.lab import published_rules
from extproc.lab.simulation.workers import workers
from extproc.lab.tables.contenders import CONTENDERS, ORACLES, OURS, UNSYNCHRONIZED, YARDSTICK
from extproc.lab.tables.markdown import number, table, yes
from extproc.lab.tables.random_trials import ONE, Sidecars, random_trial, run
from extproc.lab.tables.trials import Figures, rounded

PAGE = "out-of-sample.md"
FIGURES = "out-of-sample.json"

RULES = (*(name for name in CONTENDERS if name.startswith(YARDSTICK)), *published_rules.names())
"""Contenders of which the best counts."""

ALL = (*RULES, OURS, *ORACLES, *UNSYNCHRONIZED)
"""Contenders of each trial with one sidecar."""

ALONE = "4 sidecars"
SHARING = "4 sidecars that share their state"
SEVERAL = {ALONE: Sidecars(4), SHARING: Sidecars(4, share=0.01)}
"""Several sidecars by their names in the file."""

BEHIND_SEVERAL = (*((name, ALONE) for name in (*RULES, OURS)), (OURS, SHARING))
"""Contenders of each trial with several sidecars. Only this product shares a state."""

COMPARED = {"mean_ttft_ms": "mean TTFT", "p99_ttft_ms": "p99 TTFT", "output_throughput": "tokens/s"}

MOST = {"median": 0.95, "90th percentile": 1.05, "worst": 1.2}
"""Targets for our time over the best rule's."""

_TEXT = Path(__file__).with_suffix(".md")


class Task(NamedTuple):
    """A contender in a random trial."""

    number: int
    contender: str
    sidecars: str = ""
    """Name of several sidecars; empty for one."""

    @property
    def key(self) -> str:
        """Its name in the file."""
        return " | ".join(filter(None, (str(self.number), self.contender, self.sidecars)))


class Draws:
    """The figures of random trials, and their descriptions."""

    def __init__(self) -> None:
        self.descriptions: dict[int, str] = {}
        self.figures: dict[Task, Figures] = {}

    @classmethod
    def read(cls, path: Path) -> Draws:
        """Read a file; without a file, return none."""
        found = cls()
        for key, value in (json.loads(path.read_text()) if path.exists() else {}).items():
            drawn, *names = key.split(" | ")
            if names:
                found.figures[Task(int(drawn), *names)] = value
            else:
                found.descriptions[int(drawn)] = value
        return found

    def write(self, path: Path) -> None:
        """Write one line for each trial and each contender."""
        lines = [f'"{drawn}": {json.dumps(text)}' for drawn, text in self.descriptions.items()]
        known = sorted(self.figures.items())
        lines += [f"{json.dumps(task.key)}: {json.dumps(those)}" for task, those in known]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @property
    def complete(self) -> list[int]:
        """The numbers of the trials in which all contenders have figures."""
        return [
            drawn
            for drawn in sorted(self.descriptions)
            if all(Task(drawn, name) in self.figures for name in ALL)
        ]

    @property
    def complete_behind_several(self) -> list[int]:
        """The numbers of the trials in which all contenders behind several sidecars have some."""
        numbers = sorted({task.number for task in self.figures if task.sidecars})
        return [
            drawn
            for drawn in numbers
            if all(Task(drawn, *names) in self.figures for names in BEHIND_SEVERAL)
        ]

    def best(self, drawn: int, metric: str, sidecars: str = "") -> str:
        """Return the rule with the least time or the highest throughput."""
        sign = 1 if metric.endswith("_ms") else -1
        return min(RULES, key=lambda name: sign * self.figures[Task(drawn, name, sidecars)][metric])

    def ratio(self, drawn: int, metric: str, name: str = OURS, sidecars: str = "") -> float:
        """Return our figure, or another contender's, over that of the best rule.

        Behind several sidecars, the rules share nothing.
        """
        theirs = ALONE if sidecars else ""
        best = self.figures[Task(drawn, self.best(drawn, metric, theirs), theirs)][metric]
        return self.figures[Task(drawn, name, sidecars)][metric] / best

    def oracle(self, drawn: int, metric: str, rules: Iterable[str] = ORACLES) -> float:
        """Return the oracle's figure over that of the best rule.

        The oracle has the one of its rules with the shortest mean TTFT, or a published one.
        """
        names = (*rules, *RULES)
        best = min(names, key=lambda name: self.figures[Task(drawn, name)]["mean_ttft_ms"])
        return self.ratio(drawn, metric, best)


def update(
    docs: Path, draws: int, only: Sequence[str] | None = None, *, missing: bool = False
) -> str:
    """Simulate the first trials, write the page and return its summary.

    As many further trials are simulated behind several sidecars. Those between the two tested
    earlier rules for several sidecars. `only` and `missing` leave out tasks, which keep their
    figures: those without one of these strings in their key, and those with figures.
    """
    found = Draws.read(docs / FIGURES)
    found.descriptions = {n: random_trial(n).description for n in range(draws)}
    tasks = [Task(n, name) for n in range(draws) for name in ALL]
    tasks += [Task(n, *names) for n in range(3 * draws, 4 * draws) for names in BEHIND_SEVERAL]
    found.figures = {task: found.figures[task] for task in tasks if task in found.figures}
    wanted = [
        task
        for task in tasks
        if (only is None or any(word in task.key for word in only))
        and not (missing and task in found.figures)
    ]
    _simulate(wanted, found, docs / FIGURES)
    found.write(docs / FIGURES)
    (docs / PAGE).write_text(text(found))
    return summary(found)


def text(found: Draws) -> str:
    """Return the page."""
    return Template(_TEXT.read_text()).substitute(
        draws=len(found.complete),
        summary=summary(found),
        several_draws=len(found.complete_behind_several),
        several=_several(found),
        rows=_rows(found),
    )


def summary(found: Draws) -> str:
    """Show the distribution of the ratios, and if the targets for times are met."""
    if not found.complete:
        return "*Not simulated yet.*"
    rows = []
    for metric, name in COMPARED.items():
        spread = _spread([found.ratio(drawn, metric) for drawn in found.complete], metric)
        cells = [_ratio(value) for value in spread.values()]
        met = ""
        if metric.endswith("_ms"):
            met = yes(all(round(spread[one], 3) <= most for one, most in MOST.items()))
        rows.append([name, *cells, met])
    for metric in ("mean_ttft_ms", "p99_ttft_ms"):
        spread = _spread([found.oracle(drawn, metric) for drawn in found.complete], metric)
        rows.append([f"the oracle's {COMPARED[metric]}", *map(_ratio, spread.values()), ""])
    ratios = [found.oracle(drawn, "mean_ttft_ms", UNSYNCHRONIZED) for drawn in found.complete]
    spread = _spread(ratios, "mean_ttft_ms")
    rows.append(["its mean TTFT without the ends of steps", *map(_ratio, spread.values()), ""])
    most = [f"{one} (target {limit})" for one, limit in MOST.items()]
    return table(["ours over the best rule's", *most, "met"], rows)


def _several(found: Draws) -> str:
    """Show the distribution of the ratios behind several sidecars."""
    if not found.complete_behind_several:
        return "*Not simulated yet.*"
    rows = []
    for sidecars, label in ((ALONE, "nothing is shared"), (SHARING, "PrefixCache shares")):
        for metric, name in COMPARED.items():
            ratios = [
                found.ratio(drawn, metric, sidecars=sidecars)
                for drawn in found.complete_behind_several
            ]
            rows.append([f"{name}, {label}", *map(_ratio, _spread(ratios, metric).values())])
    return table(["ours over the best rule's", *MOST], rows)


def _spread(ratios: Sequence[float], metric: str) -> dict[str, float]:
    """Return median, 90th percentile and worst; a higher throughput is better."""
    least_good_first = metric.endswith("_ms")
    nine_tenths = float(np.percentile(ratios, 90 if least_good_first else 10))
    worst = max(ratios) if least_good_first else min(ratios)
    return dict(zip(MOST, (float(np.median(ratios)), nine_tenths, worst), strict=True))


def _rows(found: Draws) -> str:
    rows = []
    for drawn in found.complete:
        best = found.best(drawn, "mean_ttft_ms")
        theirs, ours = (found.figures[Task(drawn, name)]["mean_ttft_ms"] for name in (best, OURS))
        ratios = [_ratio(found.ratio(drawn, metric)) for metric in COMPARED]
        ratios.append(_ratio(found.oracle(drawn, "mean_ttft_ms")))
        rows.append([found.descriptions[drawn], best, number(theirs), number(ours), *ratios])
    times = ["its mean TTFT (ms)", f"{OURS}'s"]
    heads = ["trial", "best rule by mean TTFT", *times, *COMPARED.values(), "oracle, mean TTFT"]
    return table(heads, rows, left=2)


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _simulate(tasks: Collection[Task], found: Draws, path: Path) -> None:
    """Run all tasks on all cores, and write each result at once."""
    if not tasks:
        return
    with workers(len(tasks)) as pool:
        runs = {pool.submit(_outcome, task): task for task in tasks}
        for one in track(as_completed(runs), "simulating", total=len(runs)):
            found.figures[runs[one]] = one.result()
            found.write(path)


def _outcome(task: Task) -> Figures:
    contender = (CONTENDERS | ORACLES | UNSYNCHRONIZED)[task.contender]
    return rounded(run(task.number, contender, SEVERAL.get(task.sidecars, ONE)))
