"""Logs, metrics and `/debug/state`."""
