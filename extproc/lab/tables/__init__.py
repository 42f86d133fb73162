"""`make tables`: docs/benchmarks.md and docs/prefix-caches.md, out of simulations."""
