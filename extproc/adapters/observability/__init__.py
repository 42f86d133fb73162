"""Logs, metrics and the state page."""
