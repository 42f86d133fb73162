"""The demo's report: its runs as charts, and Envoy's log of the decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from extproc.lab.demo.chat import Outcome, Workload
from extproc.lab.demo.decisions import FIELDS
from extproc.lab.demo.report import Result
from extproc.lab.demo.stack import REPLICAS, TIME_SCALE
from extproc.lab.measures import run as measured
from extproc.lab.measures.report import Report

_LINES_OF_EACH_KIND = 5


def write_page(
    path: Path,
    results: Sequence[Result],
    workload: Workload,
    access_log: Iterable[Mapping[str, object]],
) -> None:
    """Write the report. Raises OSError."""
    source = (
        f"extproc demo: {workload.users} users send {workload.turns} messages each through Envoy "
        f"to {REPLICAS} stand-in vLLM replicas, each {TIME_SCALE:g} x as fast as an L4"
    )
    runs = [measured_run(result) for result in results]
    about = f"The last {_LINES_OF_EACH_KIND} decisions of each kind in Envoy's access log"
    Report("extproc demo", source, runs, log_lines(access_log), about).write(path)


def measured_run(result: Result) -> measured.Run:
    """Return a run of the demo in the form of all other runs."""
    outcomes = result.run.outcomes
    names = sorted({one.replica for one in outcomes if one.replica})
    good = np.array([one.status == 200 for one in outcomes], dtype=bool)
    sent = np.array([one.sent for one in outcomes])
    first = sent + np.array([one.ttft for one in outcomes])
    last = sent + np.array([one.total for one in outcomes])
    return measured.Run(
        workload="chat",
        strategy=result.strategy,
        seconds=result.run.seconds,
        wanted=sent,
        sent=sent,
        first=np.where(good, first, np.nan),
        last=np.where(good, last, np.nan),
        prompt_tokens=_whole(one.prompt_tokens for one in outcomes),
        output_tokens=_whole(one.tokens for one in outcomes),
        cached_tokens=_whole(one.cached_tokens for one in outcomes),
        endpoint=_whole(names.index(one.replica) if one.replica else -1 for one in outcomes),
        gaps=np.array([_gap(one) for one in outcomes if one.status == 200 and one.tokens > 1]),
    )


def log_lines(access_log: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the last lines of each kind of decision, with the fields that the demo shows."""
    kinds: dict[tuple[object, object], list[Mapping[str, object]]] = {}
    for line in access_log:
        kinds.setdefault((line["strategy"], line["reason"]), []).append(line)
    return [
        {name: line[name] for name in FIELDS if line.get(name) is not None}
        for lines in kinds.values()
        for line in lines[-_LINES_OF_EACH_KIND:]
    ]


def _gap(outcome: Outcome) -> float:
    """Return the mean time between two tokens."""
    return (outcome.total - outcome.ttft) / (outcome.tokens - 1)


def _whole(values: Iterable[int]) -> measured.Ints:
    return np.fromiter(values, dtype=np.int64)
