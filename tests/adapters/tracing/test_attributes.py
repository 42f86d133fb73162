"""Attributes of spans."""

from __future__ import annotations

from extproc.adapters.tracing.attributes import of_decision
from extproc.core.routing.decision import Wait
from extproc.core.strategies import Prediction
from tests.core.builders import model_spec
from tests.edge.envoy import Reply, chat_request, request_body, request_headers
from tests.edge.streams import Sidecar


def test_span_has_all_metadata_of_its_decision() -> None:
    """The telemetry keeps the decision, and Envoy gets its metadata."""
    sidecar = Sidecar(model_spec(adapters=["sql"]))
    session = sidecar.processor.open(lambda _: None)
    session.receive(request_headers())
    (decided,) = session.receive(request_body(chat_request("sql")))
    (recorded,) = sidecar.telemetry.decisions.after(0)
    attributes = of_decision(recorded.verdict)  # type: ignore[arg-type]
    metadata = Reply(decided).metadata["extproc"]
    assert {name: attributes[f"extproc.{name}"] for name in metadata} == metadata
    session.close()


def test_span_has_the_prediction_and_the_wait() -> None:
    sidecar = Sidecar()
    decision = sidecar.router.decide(sidecar.router.resolve("llama", None, {}))
    decision = decision._replace(
        prediction=Prediction(300, 100), wait=Wait(seconds=1.2344, priority=-1, tenant="0a1b")
    )
    assert {
        "extproc.predicted_hit": 0.3333,
        "extproc.queued_ms": 1234,
        "extproc.priority": -1,
        "extproc.tenant_hash": "0a1b",
    }.items() <= of_decision(decision).items()
