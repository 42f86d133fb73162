"""The load report in a header of an answer, as vLLM gives it to those who ask for it (ORCA)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from extproc.lab.engine.replica import Replica

REQUEST_HEADER = "endpoint-load-metrics-format"
"""TEXT or JSON, in any case."""

HEADER = "endpoint-load-metrics"


def report(wanted: Mapping[str, str], replica: Replica) -> dict[str, str]:
    """The header to add for a request's headers; none for a format that is not known."""
    metrics = {
        "num_requests_waiting": float(replica.waiting),
        "kv_cache_usage_perc": replica.kv_usage,
    }
    match wanted.get(REQUEST_HEADER, "").lower():
        case "text":
            named = (f"named_metrics.{name}={value}" for name, value in metrics.items())
            return {HEADER: f"TEXT {', '.join(named)}"}
        case "json":
            return {HEADER: f"JSON {json.dumps({'named_metrics': metrics})}"}
        case _:
            return {}
