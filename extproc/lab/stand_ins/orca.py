"""The load report that vLLM adds to a response header on request (ORCA)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from extproc.lab.engine.replica import Replica

REQUEST_HEADER = "endpoint-load-metrics-format"
"""Request header with the format: TEXT or JSON, in upper or lower case."""

HEADER = "endpoint-load-metrics"


def report(wanted: Mapping[str, str], replica: Replica) -> dict[str, str]:
    """Return the header to add for a request's headers; none if the format is unknown."""
    metrics = {
        "num_requests_waiting": float(replica.stats.waiting),
        "kv_cache_usage_perc": replica.stats.kv_usage,
    }
    match wanted.get(REQUEST_HEADER, "").lower():
        case "text":
            named = (f"named_metrics.{name}={value}" for name, value in metrics.items())
            return {HEADER: f"TEXT {', '.join(named)}"}
        case "json":
            return {HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
        case _:
            return {}
