"""The simulation: client, sidecars and engines on one timeline."""
