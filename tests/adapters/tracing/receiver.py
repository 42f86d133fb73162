"""A real OTLP receiver in this process, over gRPC, with OpenTelemetry's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from threading import Event
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from extproc.lab.stack.processes import free_port


class Receiver(TraceServiceServicer):
    """Keeps the spans that it receives."""

    def __init__(self) -> None:
        self.url = f"grpc://127.0.0.1:{free_port()}"
        self.requests: list[ExportTraceServiceRequest] = []
        self.metadata: dict[str, str] = {}
        self.may_respond = Event()
        self.may_respond.set()

    def Export(  # noqa: N802
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.may_respond.wait(30)
        self.metadata = dict(context.invocation_metadata())
        self.requests.append(request)
        return ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        """The attributes of the process that sent the last spans."""
        return values(self.requests[-1].resource_spans[0].resource.attributes)

    @contextmanager
    def listening(self) -> Iterator[Receiver]:
        """Listen until the context ends."""
        server = grpc.server(futures.ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(self.url.removeprefix("grpc://"))
        server.start()
        try:
            yield self
        finally:
            self.may_respond.set()
            server.stop(None).wait()


def values(attributes: Iterator[KeyValue] | Any) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value")
        for one in attributes
    }
