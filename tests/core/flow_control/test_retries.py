"""Requests that failed, or that another endpoint served on a retry."""

from __future__ import annotations

from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.response import Response
from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.decision import Decision
from tests.core.flow_control.scene import Flow, Sent


def retried(flow: Flow, seconds: float = 0.0) -> tuple[Sent, str, str]:
    """Send a request, whose response comes from another endpoint after these seconds.

    Return it with the chosen endpoint and the other one.
    """
    sent = flow.send("retried")
    assert isinstance(sent.outcome, Decision)
    flow.now += seconds
    chosen = sent.address
    (other,) = set(flow.endpoints) - {chosen}
    head = Event(Kind.RESPONSE_HEADERS, served_by=other, outcome=Outcome.SERVED, attempts=2)
    Response(flow.fleet, sent.outcome, 0).headers(head)
    return sent, chosen, other


def test_its_latency_does_not_count_for_the_endpoint_that_failed() -> None:
    flow = Flow(maxInflight=None)
    _, chosen, _ = retried(flow, seconds=7.0)
    assert not flow.control.room.limits._latency_limit(chosen)._samples


def test_a_failure_does_not_count_as_a_latency() -> None:
    flow = Flow(maxInflight=None)
    sent = flow.send("failed")
    assert isinstance(sent.outcome, Decision)
    head = Event(Kind.RESPONSE_HEADERS, served_by=sent.address, outcome=Outcome.ERROR)
    Response(flow.fleet, sent.outcome, 0).headers(head)
    assert not flow.control.room.limits._latency_limit(sent.address)._samples


def test_its_end_is_no_end_of_a_step_of_the_endpoint_that_failed() -> None:
    flow = Flow(strategy="RoundRobin", maxInflight=None)
    sent, chosen, _ = retried(flow)
    prompts = flow.control.room.limits.prompts
    prompts.sent(chosen, 400.0, flow.now)
    before = prompts._of(chosen).tokens
    flow.now += 1.0
    sent.end()
    assert prompts._of(chosen).tokens == before > 0


def test_a_decision_keeps_the_address_of_the_chosen_endpoint() -> None:
    flow = Flow()
    sent, chosen, other = retried(flow)
    assert isinstance(sent.outcome, Decision)
    assert sent.outcome.address == chosen
    assert sent.outcome.lease.endpoint.address == other
