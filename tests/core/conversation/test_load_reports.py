"""The sidecar requests load reports if a strategy uses them, and clients get only reports that they
requested themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random

import pytest

from extproc.core.conversation.events import BodyMode, Event, Kind, Modes, Proceed, Replies
from extproc.core.conversation.state_machine import Conversation
from extproc.core.fleet.load_report import ResponseVisibility
from extproc.core.fleet.report import Load
from tests.core.builders import TWO_ADDRESSES, model_spec, router

ASKED = (("endpoint-load-metrics-format", "TEXT"),)
HIDDEN = ("endpoint-load-metrics",)
REPORT = b"TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"
BODY = json.dumps({"model": "llama", "prompt": "hello"}).encode()
IN_MODES = pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.DUPLEX, BodyMode.NONE])


class Gateway:
    """One Envoy with the sidecar."""

    def __init__(self, strategy: str = "LeastQueue", *, shows_answers: bool = True) -> None:
        self.router = router(model_spec("llama", strategy=strategy))
        self.router.fleet.signals.set_endpoints(TWO_ADDRESSES)
        self.shown = ResponseVisibility()
        if shows_answers:
            first = self.request()
            first.answered()
            first.conversation.close()

    def request(self, mode: BodyMode = BodyMode.BUFFERED, **headers: bytes) -> Request:
        return Request(self, mode, {k.replace("_", "-"): v for k, v in headers.items()})

    def loads(self) -> dict[str, Load]:
        """Return the known loads by endpoint."""
        readings = {address: self.router.fleet.signals.latest(address) for address in TWO_ADDRESSES}
        return {address: reading.load for address, reading in readings.items() if reading}


class Request:
    """One stream, up to the decision."""

    def __init__(self, gateway: Gateway, mode: BodyMode, headers: Mapping[str, bytes]) -> None:
        self.conversation = Conversation(gateway.router, Random(0), gateway.shown)
        raw = {":method": b"POST", ":path": b"/v1/completions", **headers}
        first = Event(Kind.REQUEST_HEADERS, headers=raw, modes=Modes(mode))
        body = Event(Kind.REQUEST_BODY, body=BODY, end_of_stream=True)
        replies = self.conversation.receive(first) + self.conversation.receive(body)
        self.decided = next(a for a in replies if isinstance(a, Proceed) and a.decision)

    @property
    def asks(self) -> bool:
        """True if the sidecar requests a report."""
        assert self.decided.set_headers in (ASKED, ())
        return self.decided.set_headers == ASKED

    @property
    def address(self) -> str:
        """The address of the chosen endpoint."""
        return self.decided.target

    def answered(self, report: bytes | None = None, served_by: str = "") -> Replies:
        """Send the response headers."""
        event = Event(Kind.RESPONSE_HEADERS, load_report=report, served_by=served_by)
        return self.conversation.receive(event)


class TestRequestForReport:
    @IN_MODES
    def test_is_added(self, mode: BodyMode) -> None:
        assert Gateway().request(mode).asks

    def test_is_not_added_before_envoy_has_shown_a_response(self) -> None:
        gateway = Gateway(shows_answers=False)
        first, second = gateway.request(), gateway.request()
        assert not first.asks
        first.answered()
        assert not second.asks
        assert gateway.request().asks

    @pytest.mark.parametrize("strategy", ["PrefixHash", "LeastLoad", "RoundRobin", "Random"])
    def test_is_not_added_for_a_strategy_without_signals(self, strategy: str) -> None:
        assert not Gateway(strategy).request().asks

    @pytest.mark.parametrize("wanted", [b"TEXT", b"JSON", b"json"])
    def test_is_not_added_if_the_client_sent_one(self, wanted: bytes) -> None:
        assert not Gateway().request(endpoint_load_metrics_format=wanted).asks

    @pytest.mark.parametrize("wanted", [b"", b"BIN", b"\xff"])
    def test_is_added_if_the_client_sent_an_unknown_format(self, wanted: bytes) -> None:
        assert Gateway().request(endpoint_load_metrics_format=wanted).asks

    def test_is_added_without_request_headers(self) -> None:
        gateway = Gateway()
        conversation = Conversation(gateway.router, Random(0), gateway.shown)
        (reply,) = conversation.receive(Event(Kind.REQUEST_BODY, body=BODY, end_of_stream=True))
        assert isinstance(reply, Proceed)
        assert reply.set_headers == ASKED


class TestReport:
    @IN_MODES
    def test_is_read_and_removed(self, mode: BodyMode) -> None:
        gateway = Gateway()
        request = gateway.request(mode)
        replies = request.answered(REPORT)
        assert replies == (Proceed(Kind.RESPONSE_HEADERS, remove_headers=HIDDEN),)
        assert gateway.loads() == {request.address: Load(3, 0.25)}

    def test_counts_for_the_endpoint_that_served_the_retry(self) -> None:
        gateway = Gateway()
        request = gateway.request()
        (other,) = set(TWO_ADDRESSES) - {request.address}
        request.answered(REPORT, served_by=other)
        assert gateway.loads() == {other: Load(3, 0.25)}
        assert dict(gateway.router.fleet.ledger.loads) == {other: 1}

    def test_that_the_client_requested_is_read_and_passed(self) -> None:
        gateway = Gateway()
        request = gateway.request(endpoint_load_metrics_format=b"TEXT")
        assert request.answered(REPORT) == (Proceed(Kind.RESPONSE_HEADERS),)
        assert gateway.loads() == {request.address: Load(3, 0.25)}

    def test_that_was_not_requested_is_passed(self) -> None:
        gateway = Gateway(shows_answers=False)
        assert gateway.request().answered(REPORT) == (Proceed(Kind.RESPONSE_HEADERS),)

    def test_is_ignored_for_a_strategy_without_signals(self) -> None:
        gateway = Gateway("PrefixHash")
        assert gateway.request().answered(REPORT) == (Proceed(Kind.RESPONSE_HEADERS),)
        assert gateway.loads() == {}

    @pytest.mark.parametrize("report", [b"TEXT nonsense", b""])
    def test_with_implausible_numbers_is_removed_too(self, report: bytes) -> None:
        gateway = Gateway()
        replies = gateway.request().answered(report)
        assert replies == (Proceed(Kind.RESPONSE_HEADERS, remove_headers=HIDDEN),)
        assert gateway.loads() == {}

    def test_that_is_missing_is_not_removed(self) -> None:
        assert Gateway().request().answered() == (Proceed(Kind.RESPONSE_HEADERS),)

    def test_after_the_end_is_ignored(self) -> None:
        gateway = Gateway()
        request = gateway.request()
        request.conversation.close()
        assert request.answered(REPORT) == ()
        assert gateway.loads() == {}

    def test_before_a_decision_is_ignored(self) -> None:
        gateway = Gateway()
        conversation = Conversation(gateway.router, Random(0), gateway.shown)
        event = Event(Kind.RESPONSE_HEADERS, load_report=REPORT)
        assert conversation.receive(event) == (Proceed(Kind.RESPONSE_HEADERS),)
        assert gateway.loads() == {}
