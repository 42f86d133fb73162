"""Fixtures for the tests of the commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.commands.documents import BODY, GOOD


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("EXTPROC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KUBECONFIG", "/nonexistent/kubeconfig")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def body(tmp_path: Path) -> Path:
    path = tmp_path / "body.json"
    path.write_bytes(BODY)
    return path
