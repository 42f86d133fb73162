"""The workloads of the laboratory, by name.

`named` builds one. Each workload's file separates published facts from assumptions.
"""

from __future__ import annotations

from dataclasses import replace

from extproc.lab.workloads.catalog import SHORT, WORKLOADS, Known
from extproc.lab.workloads.jsonl import WorkloadError
from extproc.lab.workloads.options import Options
from extproc.lab.workloads.workload import Workload

__all__ = ["Options", "WorkloadError", "described", "named", "names"]


def names() -> list[str]:
    """Return the names, in the order of the list."""
    return list(WORKLOADS)


def described() -> dict[str, str]:
    """Return a one-line description of each."""
    return {name: known.description for name, known in WORKLOADS.items()}


def named(name: str, options: Options | None = None) -> Workload:
    """Build a workload. Equal options give equal workloads.

    Raises WorkloadError for an unknown name, an unknown option or a bad file.
    """
    asked = options or Options()
    known = WORKLOADS.get(SHORT.get(name, name))
    if known is None:
        raise WorkloadError(f"unknown workload {name!r}: known workloads are {', '.join(names())}")
    _check(name, known, asked)
    workload = known.build(asked)
    if asked.sessions is not None:
        workload = _first(workload, asked.sessions)
    if asked.concurrency is not None:
        workload = replace(workload, concurrency=asked.concurrency)
    return _with_arrivals(name, workload, asked)


def _check(name: str, known: Known, asked: Options) -> None:
    for option in ("trace", "pace", "real_conversations", "agreement"):
        if getattr(asked, option) != getattr(Options, option) and option not in known.takes:
            raise WorkloadError(f"the workload {name} has no option {option}")
    if "trace" in known.takes and asked.trace is None:
        raise WorkloadError(f"the workload {name} needs the option trace: the file to replay")
    for option in ("pace", "concurrency", "sessions", "burstiness", "at_once"):
        value = getattr(asked, option)
        if value is not None and not value > 0:
            raise WorkloadError(f"{option} must be more than 0, not {value}")
    if not 0 <= asked.agreement <= 1:
        raise WorkloadError(f"agreement must be from 0 to 1, not {asked.agreement}")


def _with_arrivals(name: str, workload: Workload, asked: Options) -> Workload:
    for option in ("burstiness", "at_once"):
        value = getattr(asked, option)
        if value is None:
            continue
        if workload.requests_per_second is None:
            raise WorkloadError(f"the workload {name} has no option {option}: it has no rate")
        workload = replace(workload, **{option: value})
    return workload


def _first(workload: Workload, sessions: int) -> Workload:
    warm_up = workload.sessions[: workload.warm_up][:sessions]
    measured = workload.sessions[workload.warm_up :][:sessions]
    return replace(workload, sessions=[*warm_up, *measured], warm_up=len(warm_up))
