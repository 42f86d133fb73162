"""Fixtures of the fault tests: each test has its own stack and its own report."""

from __future__ import annotations

import pytest

import tests.edge.quiet_envoy  # noqa: F401
from tests.e2e.stacks import deploy, every_envoy, launch, pytest_generate_tests
from tests.faults.report import Report

__all__ = ["deploy", "every_envoy", "launch", "pytest_generate_tests"]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Return the report in which the test notes the fault and its cost."""
    assert isinstance(request.node, pytest.Function)
    return Report(request.node)
