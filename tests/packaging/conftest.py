"""Fixtures that run a stack with the built package."""

from tests.e2e.stacks import launch

__all__ = ["launch"]
