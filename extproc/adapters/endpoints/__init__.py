"""Endpoints from discovered addresses: which may receive requests, and which are selected."""
