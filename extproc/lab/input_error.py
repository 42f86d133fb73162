"""The error for invalid input of a user."""

from __future__ import annotations


class InputError(ValueError):
    """Raised for invalid input, with a message of one line that names the place and the problem."""
