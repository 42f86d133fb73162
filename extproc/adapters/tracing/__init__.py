"""Traces: a span for each decision, exported by OTLP. Metrics stay with Prometheus."""
