"""Fixtures that run `extproc simulate` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from extproc.lab.measures.run import Run
from extproc.lab.simulation import command
from extproc.lab.simulation.simulation import Scenario, simulate
from tests.lab.simulation.command.running import (
    DOCUMENT,
    Outcome,
    Simulate,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Collect the simulated scenarios. They run in this process, which is faster."""
    asked: list[Scenario] = []

    def simulate_all(scenarios: Sequence[Scenario], progress: object = None) -> list[Run]:
        asked.extend(scenarios)
        return [simulate(one) for one in scenarios]

    monkeypatch.setattr(command, "simulate_all", simulate_all)
    monkeypatch.delenv("COLUMNS", raising=False)
    return asked


@pytest.fixture
def run(fleets: list[Scenario], capsys: Capture) -> Simulate:
    def main(*arguments: object) -> Outcome:
        code: object
        try:
            code = command.main([str(one) for one in arguments])
        except SystemExit as exit_:
            code = exit_.code
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return main


@pytest.fixture
def refused(run: Simulate) -> Callable[..., str]:
    """Return a function that runs a command with bad arguments and returns its line on stderr."""

    def main(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("extproc simulate: ")
        return line.removeprefix("extproc simulate: ")

    return main


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(DOCUMENT)
    return path
