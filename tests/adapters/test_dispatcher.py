"""The flow control runs after changes, and regularly while requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest

from extproc.adapters.dispatcher import Dispatcher
from extproc.core.flow_control.flow_control import TICK_SECONDS, FlowControl
from extproc.core.flow_control.waiter import Arrival
from extproc.core.request.refusals import Refusal
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.lab.stack.processes import until
from tests.core.builders import model_spec, router
from tests.extent import PATIENCE

FLOW = {"flowControl": {"maxInflight": 1, "maxWaitSeconds": 0.1}}


class Requests:
    """Requests to one endpoint with room for one, and their outcomes."""

    def __init__(self) -> None:
        spec = model_spec(endpoints=["10.0.0.1:8000"])
        document = spec.model_dump(by_alias=True, exclude_none=True) | FLOW
        self.router: Router = router(type(spec).model_validate(document))
        self.flow = FlowControl(self.router, monotonic)
        self.dispatcher = Dispatcher(self.flow)
        self.outcomes: list[Decision | Refusal] = []

    def send(self, released: Callable[[Decision | Refusal], None] | None = None) -> object:
        resolved = self.router.resolve("llama", None, {})
        return self.flow.admit(resolved, Arrival(), released or self.outcomes.append)


async def test_a_request_is_dispatched_soon_after_another_ends() -> None:
    requests = Requests()
    running = requests.send()
    assert isinstance(running, Decision)
    requests.send()
    running.lease.release()
    await asyncio.sleep(0)
    assert isinstance(requests.outcomes[0], Decision)
    requests.dispatcher.close()


async def test_timeouts_pass_without_another_event() -> None:
    requests = Requests()
    requests.send()
    requests.send()
    await until(lambda: len(requests.outcomes) == 1, PATIENCE, "an outcome")
    assert isinstance(requests.outcomes[0], Refusal)
    requests.dispatcher.close()


async def test_an_error_with_one_request_does_not_stop_the_others() -> None:
    def fails(_: Decision | Refusal) -> None:
        raise ZeroDivisionError

    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    requests = Requests()
    requests.send()
    requests.send(fails)
    requests.send()
    await until(lambda: len(requests.outcomes) == 1, PATIENCE, "an outcome")
    assert [type(error) for error in errors] == [ZeroDivisionError]
    requests.dispatcher.close()


async def test_nothing_runs_after_the_close() -> None:
    requests = Requests()
    requests.send()
    requests.send()
    await asyncio.sleep(0)
    requests.dispatcher.close()
    requests.flow.wake()
    await asyncio.sleep(2 * TICK_SECONDS + 0.1)
    assert not requests.outcomes


async def test_it_runs_earlier_than_usual_if_a_request_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def record(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        delays.append(delay)
        return call_later(delay, callback)

    monkeypatch.setattr(loop, "call_later", record)
    monkeypatch.setattr(FlowControl, "due_at", property(lambda flow: flow.clock() + 0.01))
    requests = Requests()
    requests.send()
    requests.send()
    await asyncio.sleep(0)
    requests.dispatcher.close()
    assert max(delays) <= 0.01
