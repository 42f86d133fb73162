from __future__ import annotations

import json
import logging

import pytest
from google.protobuf.message import DecodeError

from extproc.adapters.observability.log_sampler import LogSampler
from tests.adapters.documents import sample
from tests.core.builders import TWO_ADDRESSES, model_spec
from tests.edge.envoy import (
    BUFFERED_PARTIAL,
    DUPLEX,
    BodyMode,
    chat_request,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.edge.streams import Sidecar

OUTCOMES = "extproc_requests_total"


def test_serves_a_request_from_its_headers_to_its_end() -> None:
    sidecar = Sidecar()
    replies = sidecar.serve(
        request_headers(), request_body(chat_request()), response_headers(), response_trailers()
    )
    kinds = [reply.kind for reply in replies]
    assert kinds == ["request_headers", "request_body", "response_headers", "response_trailers"]
    assert replies[1].headers["x-target-endpoint"] in TWO_ADDRESSES
    assert sidecar.in_flight == 0


def test_request_refused_by_an_earlier_filter_is_not_counted() -> None:
    """After a refusal by an earlier filter, Envoy sends only the response."""
    sidecar = Sidecar()
    (reply,) = sidecar.serve(response_headers())
    assert reply.kind == "response_headers"
    labels = {"model": "unknown", "outcome": "aborted", "strategy": "none"}
    assert sample(sidecar.telemetry, OUTCOMES, **labels) == -1  # there is no such line


def test_serves_a_request_with_streamed_bodies_to_its_end() -> None:
    sidecar = Sidecar()
    body = json.dumps(chat_request()).encode()
    replies = sidecar.serve(
        request_headers(mode=DUPLEX, response_mode=DUPLEX),
        request_body(body[:20], end=False),
        request_body(body[20:], end=False),
        request_trailers(),
        response_headers(),
        response_body(b"data: 1\n\n"),
        response_body(b"data: 2\n\n", end=True),
    )
    assert [reply.kind for reply in replies] == [
        *("request_headers", "response_headers", "response_body", "response_body"),
    ]
    assert replies[0].body == body
    assert replies[0].replaces
    assert [reply.streamed.body for reply in replies[2:]] == [
        b"data: 1\n\n",
        b"data: 2\n\n",
    ]
    assert sidecar.in_flight == 0


def test_later_streams_request_load_reports_after_a_response_was_visible() -> None:
    sidecar = Sidecar(model_spec("llama", strategy="LeastQueue"))
    asked = []
    for _ in range(3):
        report = b"TEXT named_metrics.num_requests_waiting=1, named_metrics.kv_cache_usage_perc=0"
        replies = sidecar.serve(
            request_headers(),
            request_body(chat_request()),
            response_headers(endpoint_load_metrics=report),
        )
        asked.append("endpoint-load-metrics-format" in replies[1].headers)
        answer = replies[2].message.response_headers
        assert answer is not None
        assert (answer.response is not None) == asked[-1]
    assert asked == [False, True, True]


def test_lease_is_held_while_the_stream_is_open() -> None:
    sidecar = Sidecar()
    session = sidecar.processor.open(lambda _: None)
    for message in (request_headers(), request_body(chat_request())):
        session.receive(message)
    assert sidecar.in_flight == 1
    session.close()
    assert sidecar.in_flight == 0


def test_garbled_message_ends_the_stream_and_returns_the_lease() -> None:
    sidecar = Sidecar()
    with pytest.raises(DecodeError):
        sidecar.serve(request_headers(), request_body(chat_request()), b"garbage")
    assert sidecar.in_flight == 0


def test_refused_request_gets_exactly_one_reply() -> None:
    sidecar = Sidecar()
    replies = sidecar.serve(
        request_headers(),
        request_body(chat_request("gpt")),
        response_headers(),
        response_trailers(),
    )
    assert [reply.kind for reply in replies] == ["request_headers", "immediate_response"]
    assert replies[1].error == (404, "model_not_found")


def test_message_of_unknown_kind_gets_no_reply() -> None:
    sidecar = Sidecar()
    replies = sidecar.serve(b"", request_headers(), b"\xa2\x06\x00", request_body(chat_request()))
    assert [reply.kind for reply in replies] == ["request_headers", "request_body"]


def test_request_is_counted_once_by_its_outcome() -> None:
    sidecar = Sidecar()
    body = request_body(chat_request())
    for messages in (
        [request_headers(), body, body, response_headers(), response_trailers()],
        [request_headers(), request_body(chat_request("gpt")), body],
        [request_headers("/v1/models", method="GET", end=True)],
        [request_headers()],
        [],
    ):
        sidecar.serve(*messages)

    def count(model: str, outcome: str, strategy: str = "none") -> float:
        labels = {"model": model, "outcome": outcome, "strategy": strategy}
        return sample(sidecar.telemetry, OUTCOMES, **labels)

    assert count("llama", "routed", "PrefixHash") == 1
    assert count("unknown", "model_not_found") == 1
    assert count("unknown", "models_listed") == 1
    assert count("unknown", "aborted") == 2
    assert sample(sidecar.telemetry, "extproc_decision_duration_seconds_count") == 3


def test_refusal_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "extproc.requests"):
        Sidecar().serve(request_headers(), request_body(chat_request("gpt")))
    (record,) = caplog.records
    assert record.__dict__["fields"]["status"] == 404
    assert record.__dict__["fields"]["code"] == "model_not_found"


def test_flood_of_refusals_is_fully_counted_and_logged_in_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    sidecar = Sidecar(sampler=LogSampler(lambda: now))
    unknown = (request_headers(), request_body(chat_request("gpt")))
    with caplog.at_level(logging.INFO, "extproc.requests"):
        for _ in range(100):
            sidecar.serve(*unknown)
        sidecar.serve(request_headers("/nowhere"))
        now = 1.0
        for _ in range(2):
            sidecar.serve(*unknown)
    logged = [record.__dict__["fields"] for record in caplog.records]
    assert [(one["code"], one.get("suppressed")) for one in logged] == [
        *[("model_not_found", None)] * 5,
        ("unknown_path", None),
        ("model_not_found", 95),
    ]
    outcome = {"model": "unknown", "outcome": "model_not_found", "strategy": "none"}
    assert sample(sidecar.telemetry, OUTCOMES, **outcome) == 102


@pytest.mark.parametrize("mode", [BUFFERED_PARTIAL, DUPLEX])
def test_pass_unknown_lets_an_unknown_path_through_and_counts_it(
    mode: BodyMode,
) -> None:
    sidecar = Sidecar(pass_unknown=True)
    replies = sidecar.serve(
        request_headers("/app", mode=mode, x_target_endpoint=b"6.6.6.6:6"), request_body(b"{}")
    )
    assert [reply.kind for reply in replies] == ["request_headers", "request_body"]
    assert replies[0].mutation.remove_headers == ["x-target-endpoint"]
    labels = {"model": "unknown", "outcome": "passed", "strategy": "none"}
    assert sample(sidecar.telemetry, OUTCOMES, **labels) == 1
    assert sidecar.in_flight == 0


@pytest.mark.parametrize(("model", "message"), [("gpt", "refused"), ("llama", "routed")])
def test_log_line_of_a_request_has_its_id(
    model: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "extproc.requests"):
        for request_id in (b"3f-1\n" + b"x" * 1000, b""):
            headers = request_headers(x_request_id=request_id)
            Sidecar().serve(headers, request_body(chat_request(model)))
    first, second = (record.__dict__["fields"] for record in caplog.records)
    assert {record.message for record in caplog.records} == {message}
    assert first["request_id"] == "3f-1" + "x" * 123
    assert "request_id" not in second


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 0), (logging.DEBUG, 1)])
def test_routed_request_is_logged_at_debug_level(
    level: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, "extproc.requests"):
        Sidecar().serve(request_headers(), request_body(chat_request()))
    assert [record.message for record in caplog.records] == ["routed"] * lines


@pytest.mark.parametrize("strategy", ["PrefixCache", "PrefixHash"])
def test_prediction_is_logged(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "extproc.requests"):
        Sidecar(model_spec(strategy=strategy)).serve(
            request_headers(), request_body(chat_request())
        )
    (record,) = caplog.records
    logged = record.__dict__["fields"]
    assert logged["strategy"] == strategy
    assert logged.get("predicted_hit") == (0.0 if strategy == "PrefixCache" else None)
    assert ("predicted_hit" in logged) == (strategy == "PrefixCache")


class TestVisibleResponses:
    """Their usage is compared with the prediction."""

    prompt = "x" * 2000
    counts = b'{"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 0}}'
    usage = b'data: {"usage": %b}\n\n' % counts

    def serve(self, sidecar: Sidecar, *answer: bytes) -> None:
        """Serve one request, the same each time."""
        request = (
            request_headers(response_mode=DUPLEX),
            request_body(chat_request(content=self.prompt)),
        )
        sidecar.serve(*request, *answer)

    def counted(self, sidecar: Sidecar, name: str) -> float:
        return sample(sidecar.telemetry, f"extproc_{name}", model="llama")

    def test_are_counted_with_the_error_of_the_prediction(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        for _ in range(2):
            self.serve(sidecar, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 800
        assert self.counted(sidecar, "answered_cached_tokens_total") == 0
        assert self.counted(sidecar, "predicted_cached_tokens_total") > 400
        name = "extproc_hit_prediction_error_bucket"
        right, wrong = (
            sample(sidecar.telemetry, name, le=le, model="llama") for le in ("0.02", "1.0")
        )
        assert (right, wrong) == (1, 2), "the second was believed to be cached, and was not"

    def test_are_counted_even_if_the_client_disconnects(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        self.serve(sidecar, response_body(self.usage))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 400

    def test_are_not_compared_with_a_prediction_for_another_endpoint(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        elsewhere = response_headers({"upstream.address": "10.9.9.9:8000"})
        self.serve(sidecar, elsewhere, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 400
        assert self.counted(sidecar, "hit_prediction_error_count") == 0

    def test_have_no_prediction_error_without_a_prediction(self) -> None:
        sidecar = Sidecar()
        self.serve(sidecar, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == -1


def test_prompts_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "a very private matter"
    with caplog.at_level(logging.DEBUG, "extproc"):
        for model in ("llama", "gpt"):
            Sidecar().serve(request_headers(), request_body(chat_request(model, secret)))
        for broken in (f'{{"model": "llama", "prompt": "{secret}" x', f'"{secret}"'):
            Sidecar().serve(request_headers(), request_body(broken.encode()))
    assert len(caplog.records) == 4
    assert all(secret not in str(record.__dict__) for record in caplog.records)


def test_warns_once_that_responses_keep_the_servers_model_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = model_spec("kept-name", aliases=["llama"])
    sidecar = Sidecar(spec.model_copy(update={"answer_as_requested": True}))
    with caplog.at_level(logging.WARNING, "extproc.requests"):
        for _ in range(3):
            sidecar.serve(
                request_headers(mode=BodyMode.STREAMED, ahead=True),
                request_body(chat_request("llama")),
                response_headers(None, None, content_type=b"application/json"),
                response_trailers(),
            )
    (record,) = caplog.records
    assert record.message.startswith("answerAsRequested has no effect")
    assert record.__dict__["fields"] == {"model": "kept-name"}
