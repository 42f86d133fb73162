"""Fixtures that start a separate stack for each test."""

from tests.e2e.stacks import deploy, every_envoy, launch, pytest_generate_tests

__all__ = ["deploy", "every_envoy", "launch", "pytest_generate_tests"]
