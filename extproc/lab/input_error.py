"""What is wrong with something that a user gave."""

from __future__ import annotations


class InputError(ValueError):
    """Says in a line what is wrong and where, for people who never see the code."""
