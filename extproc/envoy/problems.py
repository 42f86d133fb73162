"""Errors in a user's Envoy configuration or request to change it."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """An error that prevents the merge. The message is one line and says what to change."""
