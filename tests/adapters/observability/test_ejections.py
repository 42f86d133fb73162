"""Ejections and returns are logged, and ejections are counted."""

from __future__ import annotations

import logging

import pytest

from extproc.adapters.observability.ejections import EjectionReport
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.router import Router
from tests.adapters.documents import sample, telemetry_of
from tests.core.builders import TWO_ADDRESSES, catalog, model_spec
from tests.core.clock import Clock

FAILING = TWO_ADDRESSES[0]


def test_ejection_and_return_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "extproc.ejections")
    clock = Clock()
    serving = Router(Fleet(clock), catalog(model_spec("a"), model_spec("b")))
    ejection, telemetry = serving.fleet.ejection, telemetry_of(serving)
    ejection.listeners.append(EjectionReport(telemetry))
    for _ in range(10):
        ejection.record(FAILING, Outcome.RESET)
    clock.advance(5)
    ejection.record(FAILING, Outcome.ERROR, ejection.chosen(FAILING))
    for _ in range(10):
        ejection.record(FAILING, Outcome.SERVED, ejection.chosen(FAILING))
    where = {"endpoint": FAILING, "models": "a,b"}
    assert [(line.levelname, line.message, vars(line)["fields"]) for line in caplog.records] == [
        ("WARNING", "endpoint ejected", {**where, "reason": "reset", "seconds": 5.0}),
        ("WARNING", "endpoint ejected", {**where, "reason": "error", "seconds": 10.0}),
        ("INFO", "endpoint in service again", where),
    ]
    for model in ("a", "b"):
        for reason in ("reset", "error"):
            labels = {"model": model, "reason": reason}
            assert sample(telemetry, "extproc_ejections_total", **labels) == 1
