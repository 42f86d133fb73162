"""Figures of a run, published tables and charts."""
