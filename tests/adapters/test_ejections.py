"""People hear of endpoints that are avoided: a line at the beginning, one at the end, a count."""

from __future__ import annotations

import pytest

from extproc.adapters.ejections import EjectionReport
from extproc.adapters.logs import configure
from extproc.adapters.telemetry import Telemetry
from extproc.core.outcome import Outcome
from tests.adapters.documents import sample
from tests.core.builders import TWO_ADDRESSES, model_spec, router

FAILING = TWO_ADDRESSES[0]


def test_an_ejection_and_a_return_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    serving = router(model_spec("a"), model_spec("b"))
    ejection, telemetry = serving.ejection, Telemetry(serving)
    ejection.observers.append(EjectionReport(telemetry))
    for _ in range(10):
        ejection.heard(FAILING, Outcome.RESET)
    ejection.heard(FAILING, Outcome.ERROR, ejection.chosen(FAILING))
    for _ in range(10):
        ejection.heard(FAILING, Outcome.SERVED, ejection.chosen(FAILING))
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        f"WARNING endpoint ejected endpoint={FAILING} models=a,b reason=reset seconds=5.0",
        f"WARNING endpoint ejected endpoint={FAILING} models=a,b reason=error seconds=10.0",
        f"INFO endpoint in service again endpoint={FAILING} models=a,b",
    ]
    for model in ("a", "b"):
        for reason in ("reset", "error"):
            labels = {"model": model, "reason": reason}
            assert sample(telemetry, "extproc_ejections_total", **labels) == 1
