from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError

from tests.adapters.documents import sample
from tests.core.builders import TWO_ADDRESSES, model_spec
from tests.edge.envoy import (
    DUPLEX,
    asking,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from tests.edge.streams import MemoryStream, Sidecar, eventually

OUTCOMES = "extproc_requests_total"


async def test_a_request_is_served_from_its_headers_to_its_end() -> None:
    sidecar = Sidecar()
    stream = MemoryStream(
        request_headers(),
        request_body(asking()),
        response_headers(),
        response_trailers(),
        None,
    )
    await sidecar.processor.process(stream)
    kinds = [reply.kind for reply in stream.replies]
    assert kinds == ["request_headers", "request_body", "response_headers", "response_trailers"]
    assert stream.replies[1].headers["x-target-endpoint"] in TWO_ADDRESSES
    assert sidecar.in_flight == 0


async def test_a_request_whose_bodies_are_streamed_back_is_served_to_its_end() -> None:
    sidecar = Sidecar()
    body = json.dumps(asking()).encode()
    stream = MemoryStream(
        request_headers(mode=DUPLEX, response_mode=DUPLEX),
        request_body(body[:20], end=False),
        request_body(body[20:], end=False),
        request_trailers(),
        response_headers(),
        response_body(b"data: 1\n\n"),
        response_body(b"data: 2\n\n", end=True),
        None,
    )
    await sidecar.processor.process(stream)
    assert [reply.kind for reply in stream.replies] == [
        *("request_headers", "request_body", "request_trailers"),
        *("response_headers", "response_body", "response_body"),
    ]
    assert stream.replies[1].streamed.body == body
    assert [reply.streamed.body for reply in stream.replies[4:]] == [
        b"data: 1\n\n",
        b"data: 2\n\n",
    ]
    assert sidecar.in_flight == 0


async def test_answers_that_were_shown_once_have_upstreams_asked_on_every_later_stream() -> None:
    sidecar = Sidecar(model_spec("llama", strategy="LeastQueue"))
    asked = []
    for _ in range(3):
        report = b"TEXT named_metrics.num_requests_waiting=1, named_metrics.kv_cache_usage_perc=0"
        stream = MemoryStream(
            request_headers(),
            request_body(asking()),
            response_headers(endpoint_load_metrics=report),
            None,
        )
        await sidecar.processor.process(stream)
        asked.append("endpoint-load-metrics-format" in stream.replies[1].headers)
        answer = stream.replies[2].message.response_headers
        assert answer is not None
        assert (answer.response is not None) == asked[-1]
    assert asked == [False, True, True]


async def test_a_lease_is_held_while_the_stream_is_open() -> None:
    sidecar = Sidecar()
    stream = MemoryStream(request_headers(), request_body(asking()))
    serving = asyncio.create_task(sidecar.processor.process(stream))
    await eventually(lambda: len(stream.replies) == 2)
    assert sidecar.in_flight == 1
    await stream.incoming.put(None)
    await serving
    assert sidecar.in_flight == 0


async def test_a_cancelled_stream_gives_its_lease_back_before_it_is_gone() -> None:
    sidecar = Sidecar()
    stream = MemoryStream(request_headers(), request_body(asking()))
    serving = asyncio.create_task(sidecar.processor.process(stream))
    await eventually(lambda: sidecar.in_flight == 1)
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    assert serving.cancelled()
    assert sidecar.in_flight == 0


async def test_a_peer_that_is_gone_when_the_answer_is_written_gives_the_lease_back() -> None:
    class Gone(MemoryStream):
        async def write(self, message: bytes) -> None:
            await super().write(message)
            if len(self.replies) == 2:
                raise ConnectionResetError

    sidecar = Sidecar()
    with pytest.raises(ConnectionResetError):
        await sidecar.processor.process(Gone(request_headers(), request_body(asking())))
    assert sidecar.in_flight == 0


async def test_bytes_that_are_no_message_end_the_stream_and_give_the_lease_back() -> None:
    sidecar = Sidecar()
    with pytest.raises(DecodeError):
        await sidecar.processor.process(
            MemoryStream(request_headers(), request_body(asking()), b"garbage")
        )
    assert sidecar.in_flight == 0


async def test_a_refused_request_gets_one_answer_and_no_more() -> None:
    sidecar = Sidecar()
    stream = MemoryStream(
        request_headers(),
        request_body(asking("gpt")),
        response_headers(),
        response_trailers(),
        None,
    )
    await sidecar.processor.process(stream)
    assert [reply.kind for reply in stream.replies] == ["request_headers", "immediate_response"]
    assert stream.replies[1].error == (404, "model_not_found")


async def test_a_message_of_no_known_kind_is_passed_over() -> None:
    sidecar = Sidecar()
    stream = MemoryStream(b"", request_headers(), b"\xa2\x06\x00", request_body(asking()), None)
    await sidecar.processor.process(stream)
    assert [reply.kind for reply in stream.replies] == ["request_headers", "request_body"]


async def test_a_request_is_counted_once_under_what_became_of_it() -> None:
    sidecar = Sidecar()
    body = request_body(asking())
    for messages in (
        [request_headers(), body, body, response_headers(), response_trailers()],
        [request_headers(), request_body(asking("gpt")), body],
        [request_headers("/v1/models", method="GET", end=True)],
        [request_headers()],
        [],
    ):
        await sidecar.processor.process(MemoryStream(*messages, None))

    def count(model: str, outcome: str, strategy: str = "none") -> float:
        labels = {"model": model, "outcome": outcome, "strategy": strategy}
        return sample(sidecar.telemetry, OUTCOMES, **labels)

    assert count("llama", "routed", "PrefixHash") == 1
    assert count("unknown", "model_not_found") == 1
    assert count("unknown", "models_listed") == 1
    assert count("unknown", "aborted") == 2
    assert sample(sidecar.telemetry, "extproc_decision_duration_seconds_count") == 3


async def test_a_refusal_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "extproc.requests"):
        await Sidecar().processor.process(
            MemoryStream(request_headers(), request_body(asking("gpt")), None)
        )
    (record,) = caplog.records
    assert record.__dict__["fields"]["status"] == 404
    assert record.__dict__["fields"]["code"] == "model_not_found"


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 0), (logging.DEBUG, 1)])
async def test_a_routed_request_is_logged_for_those_who_debug(
    level: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, "extproc.requests"):
        await Sidecar().processor.process(
            MemoryStream(request_headers(), request_body(asking()), None)
        )
    assert [record.message for record in caplog.records] == ["routed"] * lines


@pytest.mark.parametrize("strategy", ["PrefixCache", "PrefixHash"])
async def test_a_prediction_is_logged_where_there_is_one(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "extproc.requests"):
        await Sidecar(model_spec(strategy=strategy)).processor.process(
            MemoryStream(request_headers(), request_body(asking()), None)
        )
    (record,) = caplog.records
    logged = record.__dict__["fields"]
    assert logged["strategy"] == strategy
    assert logged.get("predicted_hit") == (0.0 if strategy == "PrefixCache" else None)
    assert ("predicted_hit" in logged) == (strategy == "PrefixCache")


class TestAnswersThatAreShown:
    """What they say of their prompts is held against what was predicted."""

    prompt = "x" * 2000
    counts = b'{"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 0}}'
    usage = b'data: {"usage": %b}\n\n' % counts

    async def serve(self, sidecar: Sidecar, *answer: bytes) -> None:
        """One request, the same each time."""
        request = (
            request_headers(response_mode=DUPLEX),
            request_body(asking(content=self.prompt)),
        )
        await sidecar.processor.process(MemoryStream(*request, *answer, None))

    def counted(self, sidecar: Sidecar, name: str) -> float:
        return sample(sidecar.telemetry, f"extproc_{name}", model="llama")

    async def test_are_counted_with_the_error_of_the_prediction(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        for _ in range(2):
            await self.serve(sidecar, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 800
        assert self.counted(sidecar, "answered_cached_tokens_total") == 0
        assert self.counted(sidecar, "predicted_cached_tokens_total") > 400
        name = "extproc_hit_prediction_error_bucket"
        right, wrong = (
            sample(sidecar.telemetry, name, le=le, model="llama") for le in ("0.02", "1.0")
        )
        assert (right, wrong) == (1, 2), "the second was believed to be cached, and was not"

    async def test_are_counted_though_the_client_went_away(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        await self.serve(sidecar, response_body(self.usage))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 400

    async def test_are_not_held_against_a_prediction_of_another_endpoint(self) -> None:
        sidecar = Sidecar(model_spec(strategy="PrefixCache"))
        elsewhere = response_headers({"upstream.address": "10.9.9.9:8000"})
        await self.serve(sidecar, elsewhere, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == 400
        assert self.counted(sidecar, "hit_prediction_error_count") == 0

    async def test_are_not_counted_where_nothing_was_predicted(self) -> None:
        sidecar = Sidecar()
        await self.serve(sidecar, response_body(self.usage, end=True))
        assert self.counted(sidecar, "answered_prompt_tokens_total") == -1


async def test_no_prompt_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = "a very private matter"
    with caplog.at_level(logging.DEBUG, "extproc"):
        for model in ("llama", "gpt"):
            await Sidecar().processor.process(
                MemoryStream(request_headers(), request_body(asking(model, secret)), None)
            )
        for broken in (f'{{"model": "llama", "prompt": "{secret}" x', f'"{secret}"'):
            await Sidecar().processor.process(
                MemoryStream(request_headers(), request_body(broken.encode()), None)
            )
    assert len(caplog.records) == 4
    assert all(secret not in str(record.__dict__) for record in caplog.records)
