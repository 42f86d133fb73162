"""ORCA load reports: an upstream's load in a header of its response.

vLLM adds the report to responses that are not streamed, if the request asks for one, in one of
two formats. Its numbers are as old as the response, but they cost no extra request:

    endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_...=0.25
    endpoint-load-metrics: JSON {"named_metrics": {"num_requests_waiting": 0.0, ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jiter

from extproc.core.fleet.report import Load, sound_load

FORMAT_HEADER = "endpoint-load-metrics-format"
"""The request header that names the wanted format."""
REPORT_HEADER = "endpoint-load-metrics"
"""The response header with the report."""
FORMAT = "TEXT"
"""The format that the sidecar asks for."""

_LONGEST = 4096
"""Bytes of the longest report that is read; vLLM's have about a hundred."""

_NAMED = "named_metrics."
_WAITING = "num_requests_waiting"
_KV_USAGE = "kv_cache_usage_perc"


class ResponseVisibility:
    """True in `response_headers` once Envoy has shown response headers; it does not announce this.

    If it does not show them, the sidecar could neither read a report nor remove it.
    """

    __slots__ = ("response_headers",)

    def __init__(self) -> None:
        self.response_headers = False


def is_format(text: str) -> bool:
    """Return True if upstreams know this report format."""
    return text.strip().lower() in ("text", "json")


def load_of(report: bytes) -> Load | None:
    """Return the reported queue and cache usage; None unless both are plausible."""
    if len(report) > _LONGEST:
        return None
    form, _, text = report.decode("utf-8", "replace").strip().partition(" ")
    match form.upper():
        case "TEXT":
            metrics: Mapping[str, object] = _of_text(text)
        case "JSON":
            metrics = _of_json(text)
        case _:
            return None
    waiting, kv_usage = _number(metrics.get(_WAITING)), _number(metrics.get(_KV_USAGE))
    if waiting is None or kv_usage is None:
        return None
    return sound_load(waiting, kv_usage)


def _of_text(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name.strip().removeprefix(_NAMED): value for name, _, value in pairs}


def _of_json(text: str) -> Mapping[str, Any]:
    try:
        document = jiter.from_json(text.encode())
    except ValueError:
        return {}
    named = document.get("named_metrics") if isinstance(document, dict) else None
    return named if isinstance(named, dict) else {}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
