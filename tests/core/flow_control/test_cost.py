"""The work for one request does not grow with the number of requests that wait.

Work is counted in lines of code, so no busy machine can make these tests fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.core.flow_control.scene import Flow
from tests.core.flow_control.test_line import at_home

SMALL, LARGE = 100, 3_000
TRIES = 20


def lines(function: Callable[[], object]) -> int:
    """Return how many lines of code, also of loops in one line, a function runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def waiting(number: int, *, endpoints: int, tenants: int = 1) -> Flow:
    """Return flow control in which requests wait, and no more can."""
    flow = Flow(endpoints=endpoints, maxQueued=number)
    flow.fill()
    for one in range(number):
        flow.send(tenant=str(one % tenants))
    return flow


@pytest.mark.parametrize("endpoints", [0, 1])
def test_refusing_a_request_does_not_read_the_queue(endpoints: int) -> None:
    def work(number: int) -> int:
        flow = waiting(number, endpoints=endpoints)
        return lines(lambda: [flow.send() for _ in range(TRIES)])

    assert work(LARGE) < 1.5 * work(SMALL) + 10


@pytest.mark.parametrize("endpoints", [0, 1])
def test_requests_that_wait_too_long_are_refused_one_by_one(endpoints: int) -> None:
    def work(number: int) -> float:
        flow = waiting(number, endpoints=endpoints)
        flow.now = 60.0
        return lines(flow.run) / number

    assert work(LARGE) < 1.5 * work(SMALL) + 10


def test_requests_that_leave_leave_nothing_behind() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    flow.send("stays")
    for one in range(LARGE):
        sent = flow.send(tenant=str(one % 7))
        assert sent.waiter is not None
        flow.control.cancel(sent.waiter)
    assert len(flow.control.of("llama").queue._deadlines) <= 100


@pytest.mark.parametrize("change", ["late", "without flow control", "without the model"])
def test_many_requests_are_released_in_several_runs(change: str) -> None:
    """Other requests are decided between two runs."""
    flow = waiting(1000, endpoints=1)
    if change == "late":
        flow.now = 60.0
    elif change == "without flow control":
        flow.flow = None
        flow.publish()
    else:
        flow.publish("other")
    runs = 1
    while flow.control.run():
        runs += 1
    assert not flow.control.waiting
    assert runs >= 10
    assert all(one.releases == (one.waiter is not None) for one in flow.sent)


def test_a_new_tenant_does_not_read_all_tenants() -> None:
    def work(number: int) -> int:
        flow = waiting(number, endpoints=1, tenants=number)
        assert flow.flow is not None
        flow.flow["maxQueued"] = 2 * number
        flow.publish()
        return lines(lambda: [flow.send(tenant=f"new {one}") for one in range(TRIES)])

    assert work(LARGE) < 1.5 * work(SMALL) + 10


def test_a_run_does_not_read_all_tenants_that_wait_for_another_endpoint() -> None:
    def work(number: int) -> int:
        flow = Flow(endpoints=11, strategy="PrefixHash", maxInflight=4, maxQueued=number)
        names = [at_home(flow, address, 1)[0] for address in flow.endpoints]
        running = [flow.send(names[one % 11]) for one in range(44)]
        for one in range(number):
            flow.send(names[one % 10], tenant=str(one))
        next(one for one in running if one.address == flow.endpoints[10]).end()
        count = lines(flow.run)
        assert flow.control.waiting == number
        return count

    assert work(LARGE) < 1.5 * work(SMALL) + 10


def test_a_dispatch_to_one_endpoint_does_not_walk_the_ring() -> None:
    """The ring has 256 nodes for each endpoint."""
    number = 100
    flow = Flow(endpoints=number, strategy="PrefixHash")
    running = flow.fill()
    waiting = flow.send("waiting")
    next(one for one in running if one.address == waiting.home).end()
    assert lines(flow.run) < 30 * number
    assert not waiting.waits


def test_a_run_without_room_does_not_read_the_queue() -> None:
    def work(number: int) -> int:
        return lines(waiting(number, endpoints=1, tenants=number).run)

    assert work(LARGE) < 1.5 * work(SMALL) + 10
