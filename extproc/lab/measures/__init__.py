"""Figures of a run, published tables, charts."""
