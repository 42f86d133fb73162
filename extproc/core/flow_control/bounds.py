"""Bounds of the wait: the requests that are refused, and when they may come again."""

from __future__ import annotations

from math import ceil

from extproc.core.flow_control.model_flow import ModelFlow
from extproc.core.flow_control.queue import PriorityClass
from extproc.core.flow_control.waiter import Arrival, Waiter
from extproc.core.request.refusals import QueueTimeout
from extproc.core.schema import ClassSpec, FlowControlSpec

_LONGEST_RETRY_SECONDS = 300


def longest_wait(spec: FlowControlSpec, limits: ClassSpec | None, arrival: Arrival) -> float:
    """Return the seconds after which a request is refused."""
    seconds = spec.max_wait_seconds
    if limits is not None and limits.max_wait_seconds is not None:
        seconds = limits.max_wait_seconds
    return seconds if arrival.timeout is None else min(seconds, arrival.timeout)


def too_late(
    flow: ModelFlow, group: PriorityClass, seconds: float | None, now: float
) -> QueueTimeout | None:
    """Return the refusal of a request that will probably wait longer than its own timeout.

    Return None if it will not, or if it has no timeout.
    """
    if seconds is None:
        return None
    rate = flow.rate.of(now)
    wait = flow.queue.ahead(group.priority) / rate if rate else 0.0
    if wait <= seconds and seconds > 0:
        return None
    why = f"the wait of about {ceil(wait)} s is longer than the request's timeout"
    return QueueTimeout(flow.model, retry_after(flow, now), why)


def timed_out(flow: ModelFlow, waiter: Waiter, now: float) -> QueueTimeout:
    """Return the refusal of a request whose deadline has passed."""
    why = f"the request waited {now - waiter.at:.1f} s"
    return QueueTimeout(flow.model, retry_after(flow, now), why)


def shutting_down(flow: ModelFlow) -> QueueTimeout:
    """Return the refusal of a request while the sidecar drains."""
    return QueueTimeout(flow.model, 1, "the router is shutting down")


def retry_after(flow: ModelFlow, now: float) -> int:
    """Return the estimated seconds until the present queue is dispatched, 1 or more."""
    rate = flow.rate.of(now)
    if rate:
        seconds = flow.queue.waiting / rate
    else:
        oldest = flow.queue.oldest()
        seconds = 0.0 if oldest is None else now - oldest.at
    return max(1, min(_LONGEST_RETRY_SECONDS, ceil(seconds)))
