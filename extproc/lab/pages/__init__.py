"""Generators of docs/reference.md and docs/reliability.md."""
