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


def name_of(about: ConfigMap = ABOUT, reason: str = "R", message: str = "m") -> str:
    name: str = event(about, "Normal", reason, message)[1]["metadata"]["name"]
    return name


def about(**metadata: str) -> ConfigMap:
    known = {"name": "models", "namespace": "ns", "uid": "u-1", "resourceVersion": "7"}
    return ConfigMap.model_validate({"metadata": {**known, **metadata}})


def test_all_sidecars_give_an_event_the_same_name() -> None:
    assert name_of() == name_of(message="worded otherwise by another version")
    assert name_of().startswith("models.")


def test_another_version_or_reason_is_another_event() -> None:
    others = {name_of(about(resourceVersion="8")), name_of(about(uid="u-2")), name_of(reason="S")}
    assert len({name_of(), *others}) == 4


def test_name_of_a_long_config_map_is_cut() -> None:
    name = name_of(about(name="a" * 235 + "." + "b" * 17))
    assert len(name) <= 253
    assert name.startswith("a" * 235 + ".")
    assert ".." not in name


def test_event_has_the_current_time() -> None:
    _, body = event(ABOUT, "Normal", "R", "m")
    assert body["firstTimestamp"] == body["lastTimestamp"]
    created = datetime.strptime(body["lastTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - created).total_seconds()) < PATIENCE


def test_message_is_cut_to_the_limit_of_the_api() -> None:
    _, body = event(ABOUT, "Warning", "R", "x" * 5000)
    assert body["message"] == "x" * 1024
