"""The cost of `--otlp` for each request, with a real SDK and a receiver that is away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from random import Random

from prometheus_client import CollectorRegistry

from extproc.adapters.observability.tracing_metrics import TracingMetrics
from extproc.adapters.tracing.endpoint import otlp_endpoint
from extproc.adapters.tracing.otlp import OtlpTracing
from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.state_machine import Conversation
from extproc.core.conversation.verdict import Verdict
from extproc.core.fleet.fleet import Fleet
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.router import Router
from extproc.core.schema import ModelsSpec
from extproc.core.strategies import build
from extproc.lab.bench.grid import Grid
from extproc.lab.bench.routers import best

_RECEIVER = "grpc://127.0.0.1:9"
_TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
_HEADERS = {f"x-header-{number}": b"some value" for number in range(14)}


def grid(times: int) -> Grid:
    """Return the CPU times by kind of request."""
    # The receiver is away. Its failures are not part of the figures, but its full queue is.
    logging.getLogger("extproc.tracing").setLevel(logging.ERROR)
    verdict = _verdict()
    tracing = OtlpTracing(otlp_endpoint(_RECEIVER), TracingMetrics(CollectorRegistry()))
    ways = {
        "not sampled": _span(tracing, verdict, {"traceparent": _TRACE + b"00"}),
        "sampled": _span(tracing, verdict, {"traceparent": _TRACE + b"01"}),
    }
    costs = best(ways, times)
    title = "what --otlp adds to a request, without the export; CPU us per request"
    return Grid(title, list(costs), [[f"{cost:.1f}" for cost in costs.values()]], left=0)


def _span(tracing: OtlpTracing, verdict: Verdict, own: Mapping[str, bytes]) -> Callable[[], object]:
    headers = {**_HEADERS, **own}

    def record() -> None:
        span = tracing.begin({})
        span.read(headers)
        span.decided(verdict, "")

    return record


def _verdict() -> Verdict:
    """Return a decision of PrefixHash."""
    rng, fleet = Random(1), Fleet()
    router = Router(fleet)
    models = [{"name": "m", "endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"]}]
    spec = ModelsSpec.model_validate({"models": models})
    router.publish(revise(Catalog(), spec.models, lambda one: build(one, rng, fleet.signals)))
    conversation = Conversation(router, rng)
    headers = {":path": b"/v1/completions", ":method": b"POST"}
    conversation.receive(Event(Kind.REQUEST_HEADERS, headers))
    body = b'{"model": "m", "prompt": "once upon a time"}'
    conversation.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=True))
    assert conversation.verdict is not None
    return conversation.verdict
