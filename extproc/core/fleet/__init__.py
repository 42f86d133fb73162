"""The endpoints and their state: ring, in-flight requests, metrics, caches."""
