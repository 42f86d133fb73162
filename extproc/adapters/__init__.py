"""Adapters between the core and the outside: configuration, discovery, readings, telemetry."""
