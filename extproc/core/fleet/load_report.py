"""ORCA load reports: what an upstream says of its load in a header of its answer.

vLLM adds the report to answers that are not streamed, if the request asks for one, in
one of two formats. Its numbers are as old as the answer, but they cost no request:

    endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_...=0.25
    endpoint-load-metrics: JSON {"named_metrics": {"num_requests_waiting": 0.0, ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jiter

from extproc.core.fleet.signals import Load, sound_load

FORMAT_HEADER = "endpoint-load-metrics-format"
"""Of the request: which format it wants."""
REPORT_HEADER = "endpoint-load-metrics"
"""Of the answer."""
FORMAT = "TEXT"
"""What we ask for."""

_LONGEST = 4096
"""Bytes of a report; vLLM's are a hundred."""

_NAMED = "named_metrics."
_WAITING = "num_requests_waiting"
_KV_USAGE = "kv_cache_usage_perc"


class ResponseVisibility:
    """Whether Envoy shows us the headers of answers. Nobody tells: the first ones do.

    Without them nobody would read a report that was asked for, nor take it away again.
    """

    __slots__ = ("response_headers",)

    def __init__(self) -> None:
        self.response_headers = False


def is_format(text: str) -> bool:
    """Whether a request that asks so gets a report."""
    return text.strip().lower() in ("text", "json")


def load_of(report: bytes) -> Load | None:
    """What a report says of queue and cache; None unless it says both in sound numbers."""
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
