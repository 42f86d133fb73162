from __future__ import annotations

from datetime import UTC, datetime

from extproc.adapters.kubernetes.events import event
from extproc.adapters.kubernetes.objects import ConfigMap
from tests.extent import PATIENCE

ABOUT = ConfigMap.model_validate(
    {"metadata": {"name": "models", "namespace": "ns", "uid": "u-1", "resourceVersion": "7"}}
)


def test_event_refers_to_the_object_in_its_namespace() -> None:
    path, body = event(ABOUT, "Warning", "ModelsRefused", "models: is required")
    assert path == "/api/v1/namespaces/ns/events"
    assert (body["apiVersion"], body["kind"]) == ("v1", "Event")
    assert body["metadata"]["namespace"] == "ns"
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": "ns",
        "name": "models",
        "uid": "u-1",
        "resourceVersion": "7",
    }
    event_fields = (body["type"], body["reason"], body["message"], body["source"]["component"])
    assert event_fields == ("Warning", "ModelsRefused", "models: is required", "extproc")


def test_each_event_has_its_own_name() -> None:
    names = {event(ABOUT, "Normal", "R", "m")[1]["metadata"]["name"] for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("models.") for name in names)


def test_event_has_the_current_time() -> None:
    _, body = event(ABOUT, "Normal", "R", "m")
    assert body["firstTimestamp"] == body["lastTimestamp"]
    created = datetime.strptime(body["lastTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - created).total_seconds()) < PATIENCE


def test_message_is_cut_to_the_limit_of_the_api() -> None:
    _, body = event(ABOUT, "Warning", "R", "x" * 5000)
    assert body["message"] == "x" * 1024
