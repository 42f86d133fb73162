"""Fits an engine profile to a measured table.

The table has the form of `measures/published/*.yaml`. The fit simulates its rows and changes the
parameters until the figures agree best: least squares over the logarithms of the ratios, so that
twice and half are equally wrong (scipy's trust region method). Times to first token weigh a
quarter, because they depend on small differences in load. The distance from the start weighs a
little, because parameters without evidence in the table should not change.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from pydantic import ValidationError

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.engine.profile import Profile
from extproc.lab.input_error import InputError
from extproc.lab.measures import published
from extproc.lab.measures.published import PublishedRow, PublishedTable
from extproc.lab.measures.run import Floats
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.simulation.workers import workers
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.workload import Workload

PARAMETERS = (
    "step_base_seconds",
    "seconds_per_context_token",
    "admission_seconds",
    "prefill_tokens_per_second",
    "kv_tokens",
)

WEIGHTS = {
    "mean_itl_ms": 1.0,
    "total_token_throughput": 1.0,
    "mean_time_per_token_ms": 1.0,
    "mean_ttft_ms": 0.25,
}
"""Weights of the compared metrics, as far as a row has them."""

_INERTIA = 0.02
_STEP = 0.03
"""Relative change of a parameter to see its effect. A smaller one is lost in the simulation's
noise.
"""

_ROUNDS = 6


class TableError(InputError):
    """The table cannot be used; the message explains why in one line."""


Pair = tuple[PublishedRow, Scenario]


def run(path: Path, name: str | None) -> int:
    """Print the fitted profile for `--calibrate`. Raises TableError, ProfileError."""
    tables = _read(path)
    start = profile.named(name or _workload(tables[0]).profile)
    pairs = [pair for table in tables for pair in _pairs(table, start)]
    with workers(len(pairs)) as pool:
        fitted = fit(pairs, start, pool)
        summaries = _summaries(pairs, fitted, pool)
    fitted = replace(fitted, name=f"{fitted.name}, fitted to {path.name}")
    print(_document(path, pairs, fitted, summaries))
    return 0


def fit(pairs: Sequence[Pair], start: Profile, pool: ProcessPoolExecutor) -> Profile:
    """Return the profile under which the scenarios best give the rows' figures."""
    longest = _longest(pairs)

    # The import takes a second, and the processes of the simulations do not need it.
    from scipy.optimize import least_squares

    def residuals(point: Floats) -> Floats:
        engine = _at(start, point, longest)
        summaries = _summaries(pairs, engine, pool)
        _check_served(engine, summaries)
        off = np.concatenate(
            [_off(row, one) for (row, _), one in zip(pairs, summaries, strict=True)]
        )
        _report(engine, off)
        return np.concatenate([off, _INERTIA * (point - 1)])

    best = least_squares(
        residuals, np.ones(len(PARAMETERS)), diff_step=_STEP, max_nfev=_ROUNDS, ftol=1e-3
    )
    return _at(start, best.x, longest)


def _check_served(engine: Profile, summaries: Sequence[Summary]) -> None:
    for summary in summaries:
        if summary.failed:
            raise TableError(
                f"{summary.workload}: {summary.failed} requests do not fit into {engine.name}: "
                f"{summary.notes.get('refused')}"
            )


def _longest(pairs: Sequence[Pair]) -> int:
    """Return the length of the longest request and response, which the cache must hold."""
    return max(
        turn.prompt_tokens + turn.output.tokens
        for _, scenario in pairs
        for session in scenario.workload.sessions
        for turn in session.turns
    )


def _at(start: Profile, point: Floats, longest: int) -> Profile:
    """Return the profile at a point on a logarithmic scale; 1 is the start."""
    moved = {
        name: getattr(start, name) * math.exp(x - 1)
        for name, x in zip(PARAMETERS, point, strict=True)
    }
    moved = {name: float(f"{value:.4g}") for name, value in moved.items()}
    kv_tokens = max(round(moved["kv_tokens"]), longest + start.block_size)
    return replace(start, **{**moved, "kv_tokens": kv_tokens})


def _off(row: PublishedRow, summary: Summary) -> Floats:
    return np.array([weight * math.log(ratio) for weight, ratio in _ratios(row, summary).values()])


def _ratios(row: PublishedRow, summary: Summary) -> dict[str, tuple[float, float]]:
    """Return the weight and the ratio of ours to theirs, by metric."""
    found = {}
    for metric, weight in WEIGHTS.items():
        theirs, ours = row.value(metric), summary.metric(metric)
        if theirs and ours:
            found[metric] = weight, ours / theirs
    return found


def _summaries(pairs: Sequence[Pair], engine: Profile, pool: ProcessPoolExecutor) -> list[Summary]:
    scenarios = [replace(scenario, profile=engine) for _, scenario in pairs]
    # Not `map`, which cancels the remaining tasks on an interrupt (see `workers`).
    runs = [pool.submit(simulate, scenario) for scenario in scenarios]
    return [summarize(run.result()) for run in runs]


def _read(path: Path) -> Sequence[PublishedTable]:
    try:
        tables = published.read(path)
    except OSError as error:
        raise TableError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TableError(f"{path}: {place}: {first['msg']}") from None
    except ValueError as error:
        raise TableError(f"{path}: {error}") from None
    rows = [row for table in tables for row in table.rows if not row.second_run]
    if not any(row.value(metric) for row in rows for metric in WEIGHTS):
        raise TableError(f"{path}: no row has one of {', '.join(WEIGHTS)}")
    return tables


def _workload(table: PublishedTable) -> Workload:
    options = Options(sessions=table.sessions, concurrency=table.concurrency)
    return named(table.workload, options)


def _pairs(table: PublishedTable, start: Profile) -> list[Pair]:
    workload = _workload(table)
    pairs = []
    for row in table.rows:
        balancing = LoadBalancingSpec.model_validate({"strategy": row.strategy})
        usual = Scenario.of(workload, start, balancing, limited_client=table.limited_client)
        if not row.second_run:
            pairs.append((row, replace(usual, replicas=table.replicas or usual.replicas)))
    return pairs


def _report(engine: Profile, off: Floats) -> None:
    shown = ", ".join(f"{name} {getattr(engine, name):.4g}" for name in PARAMETERS)
    print(f"off by {np.sqrt(np.mean(off**2)):.1%} on average: {shown}", file=sys.stderr)


def _document(
    path: Path, pairs: Sequence[Pair], engine: Profile, summaries: Sequence[Summary]
) -> str:
    lines = [f"# Fitted to {path.name} by `extproc simulate --calibrate`; simulated over measured:"]
    for (row, scenario), summary in zip(pairs, summaries, strict=True):
        ratios = [f"{metric} {ratio:.2f}" for metric, (_, ratio) in _ratios(row, summary).items()]
        lines.append(f"#   {scenario.workload.name} {row.strategy}: {', '.join(ratios)}")
    lines.append(yaml.safe_dump(profile.as_fields(engine), sort_keys=False, allow_unicode=True))
    return "\n".join(lines).rstrip()
