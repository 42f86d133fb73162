"""Traces through real Envoy: the sidecar's span is a child of the client's or of Envoy's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from extproc.lab.stack.processes import until
from tests.adapters.tracing.receiver import Receiver, values
from tests.e2e.scene import Json, Launch, Options, chat, manager_of
from tests.extent import PATIENCE

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
NOT_SAMPLED = {"traceparent": f"00-{TRACE}-{CLIENT}-00"}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with Receiver().listening() as receiver:
        yield receiver


@dataclass(frozen=True)
class EnvoyTraces:
    """A change of Envoy's configuration: Envoy sends its own spans to the receiver."""

    receiver: Receiver

    def __call__(self, config: Json) -> None:
        host, _, port = self.receiver.url.removeprefix("grpc://").rpartition(":")
        socket = {"address": host, "port_value": int(port)}
        endpoint = {"endpoint": {"address": {"socket_address": socket}}}
        config["static_resources"]["clusters"].append(
            {
                "name": "otlp",
                "type": "STATIC",
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": "type.googleapis.com/"
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                        "explicit_http_config": {"http2_protocol_options": {}},
                    }
                },
                "load_assignment": {
                    "cluster_name": "otlp",
                    "endpoints": [{"lb_endpoints": [endpoint]}],
                },
            }
        )
        manager_of(config)["tracing"] = {
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "otlp"}},
                    "service_name": "envoy",
                },
            }
        }


async def spans(receiver: Receiver, name: str) -> list[Span]:
    """Return the spans of this name, once there are any."""

    def found() -> list[Span]:
        return [span for span in receiver.spans if span.name.startswith(name)]

    await until(lambda: bool(found()), PATIENCE, f"spans {name}")
    return found()


@pytest.mark.parametrize("transport", ["fast", "grpcio"])
async def test_decision_is_a_child_of_the_clients_span(
    transport: str, launch: Launch, receiver: Receiver
) -> None:
    scene = await launch(
        Options(sidecar_arguments=("--otlp", receiver.url, "--transport", transport))
    )
    await scene.send(chat("not sampled"), headers=NOT_SAMPLED)
    response = await scene.send(chat("hello"), headers=SAMPLED)
    (span,) = await spans(receiver, "route")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CLIENT)
    found = values(span.attributes)
    assert f"{found['server.address']}:{found['server.port']}" == response.replica
    assert found["extproc.request_id"] == response.headers["x-request-id"]
    assert await scene.metric("extproc_spans_total", result="exported") == 1


async def test_refusal_is_an_error(launch: Launch, receiver: Receiver) -> None:
    scene = await launch(Options(sidecar_arguments=("--otlp", receiver.url)))
    response = await scene.send(chat("hello", model="gpt"), headers=SAMPLED)
    assert response.status == 404
    (span,) = await spans(receiver, "route")
    assert span.parent_span_id.hex() == CLIENT
    assert values(span.attributes)["error.type"] == "model_not_found"


@pytest.mark.parametrize("headers", [{}, SAMPLED], ids=["envoy's trace", "client's trace"])
async def test_decision_is_a_child_of_envoys_call_if_envoy_traces(
    headers: dict[str, str], launch: Launch, receiver: Receiver
) -> None:
    scene = await launch(
        Options(sidecar_arguments=("--otlp", receiver.url), change_config=EnvoyTraces(receiver))
    )
    await scene.send(chat("hello"), headers=headers)
    (decision,) = await spans(receiver, "route")
    calls = await spans(receiver, "async envoy.service.ext_proc.v3.ExternalProcessor.Process")
    assert [call.span_id for call in calls] == [decision.parent_span_id]
    assert calls[0].trace_id == decision.trace_id
    if headers:
        assert decision.trace_id.hex() == TRACE


async def test_receiver_that_is_down_fails_no_request(launch: Launch) -> None:
    scene = await launch(Options(sidecar_arguments=("--otlp", "grpc://127.0.0.1:9")))
    for _ in range(3):
        assert (await scene.send(chat("hello"), headers=SAMPLED)).status == 200
    assert await scene.sidecar.is_ready()
