"""Errors in a user's Envoy configuration or request to change it."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """The pieces cannot be written. The message is one line that says what to change."""
