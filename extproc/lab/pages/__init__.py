"""Generators of docs/reference.md, docs/reliability.md and the files of the Helm chart."""
