"""A checkpoint: what one endpoint's cache holds, for sidecars that start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from extproc.core.fleet.signals import Signals
from extproc.core.sharing.batch import packed, unpacked


class Checkpoint(NamedTuple):
    """The contents of an endpoint's cache."""

    prompt_tokens: float
    """The engine's counter of prompt tokens, or of first tokens if it has no other. If it is less
    later, the engine has restarted."""

    runs: Sequence[tuple[float, bytes]]
    """Runs of blocks, the least recently used first, with the seconds since their last use."""


def checkpoint_of(signals: Signals, address: str) -> Checkpoint | None:
    """Return the checkpoint of an endpoint; None if its cache is empty or its engine unknown."""
    prompt_tokens = _counter(signals, address)
    if prompt_tokens is None or not signals.prefixes.size(address):
        return None
    runs = signals.prefixes.runs(address)
    return Checkpoint(prompt_tokens, [(age, packed(run)) for age, run in runs])


def restore(signals: Signals, address: str, checkpoint: Checkpoint) -> None:
    """Take over a checkpoint, unless the endpoint's engine has restarted since."""
    prompt_tokens = _counter(signals, address)
    if prompt_tokens is not None and prompt_tokens >= checkpoint.prompt_tokens:
        runs = [(age, unpacked(run)) for age, run in checkpoint.runs]
        signals.prefixes.restore(address, runs)


def _counter(signals: Signals, address: str) -> float | None:
    """Return a counter that is less after a restart; None without a reading."""
    reading = signals.latest(address)
    if reading is None or reading.report is None:
        return None
    report = reading.report
    return (report.first_tokens if report.prompt_tokens is None else report.prompt_tokens) or 0.0
