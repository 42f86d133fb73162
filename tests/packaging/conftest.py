"""A stack to put the package into."""

from tests.e2e.stacks import launch

__all__ = ["launch"]
