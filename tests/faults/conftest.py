"""Each fault has a stack of its own, and a report of what it came to."""

from __future__ import annotations

import pytest

import tests.edge.quiet_envoy  # noqa: F401
from tests.e2e.stacks import deploy, every_envoy, launch, pytest_generate_tests
from tests.faults.report import Report

__all__ = ["deploy", "every_envoy", "launch", "pytest_generate_tests"]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Where a test says what it tried and what was lost."""
    assert isinstance(request.node, pytest.Function)
    return Report(request.node)
