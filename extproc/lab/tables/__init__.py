"""`make tables`: the published tables beside their simulation, written to docs/benchmarks.md."""
