"""Display names of metrics, with their units.

The keys are those of vLLM's benchmark_serving.py in its JSON (`mean_ttft_ms`,
`total_token_throughput`). Attributes of `Summary` and keys of the published tables use them too.
"""

from __future__ import annotations

_TIMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "wanted_ttft": "TTFT with client's wait",
    "time_per_token": "time per token incl. 1st",
}

_OTHERS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "requests_per_minute": "Requests per minute",
    "input_throughput": "Input token throughput (tok/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total Token throughput (tok/s)",
    "mean_token_rate": "Mean token rate of a request (tok/s)",
    "hit_rate": "Prefix cache hit rate",
    "load_spread": "Load spread (busiest over mean)",
    "client_busy": "Client busy",
    "kv_cache_usage": "KV cache in use",
    "preemptions": "Preemptions",
    "mean_queue_ms": "Mean time in engine's queue (ms)",
    "mean_session_ms": "Mean time of a session (ms)",
}

ENGINE_METRICS = frozenset({"kv_cache_usage", "preemptions", "mean_queue_ms", "mean_session_ms"})
"""Published metrics that responses do not show. A run may have them in its notes."""

_SHARES = frozenset({"hit_rate", "client_busy", "kv_cache_usage"})

_COUNTS = frozenset(
    {"completed", "failed", "total_input_tokens", "total_output_tokens", "preemptions"}
)


def label(metric: str) -> str:
    """Return the display name with the unit; the key itself for an unknown metric."""
    if metric in _OTHERS:
        return _OTHERS[metric]
    statistic, _, quantity = metric.removesuffix("_ms").partition("_")
    if quantity in _TIMES:
        return f"{statistic.capitalize()} {_TIMES[quantity]} (ms)"
    return metric.replace("_", " ")


def is_share(metric: str) -> bool:
    """True if it is a share from 0 to 1, shown in percent."""
    return metric in _SHARES


def is_count(metric: str) -> bool:
    """True if it is a count, shown without decimals."""
    return metric in _COUNTS
