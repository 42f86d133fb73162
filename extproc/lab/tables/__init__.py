"""The simulated tables of docs/benchmarks.md and docs/prefix-caches.md: `make tables`."""
