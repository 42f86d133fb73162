from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from extproc.adapters.kubernetes.objects import (
    ConfigMap,
    EndpointSlice,
    InferencePool,
    KubernetesObject,
    Pod,
)
from extproc.lab.api_server.builders import config_map, endpoint_slice, inference_pool, pod

Json = dict[str, Any]

NAMED = {"metadata": {"name": "x"}}
KINDS = [EndpointSlice, Pod, InferencePool, ConfigMap]

SLICE = endpoint_slice("vllm", "ns", "s", [("10.0.0.7", "pod-1", {"ready": True})], port=8000)
POD = pod("ns", "pod-1", {"app": "vllm"}, "10.0.0.7")
POOL = inference_pool("ns", "pool", {"app": "vllm"}, [8000, 8001])
MAP = config_map("ns", "models", {"models.yaml": "models: []"})


_MAPS = ("labels", "matchLabels")
"""Fields whose keys belong to users instead of the API."""


def with_news(value: Any) -> Any:
    """Return the object as a newer server sends it: with one more field at every depth."""
    if isinstance(value, list):
        return [with_news(item) for item in value]
    if isinstance(value, dict):
        known = {k: v if k in _MAPS else with_news(v) for k, v in value.items()}
        return known | {"newField": {"a": [None]}}
    return value


def test_reads_the_fields_that_routing_needs() -> None:
    (endpoint,) = EndpointSlice.model_validate(SLICE).endpoints
    assert endpoint.addresses == ("10.0.0.7",)
    assert endpoint.conditions is not None
    assert endpoint.conditions.ready is True
    assert endpoint.target_ref is not None
    assert (endpoint.target_ref.kind, endpoint.target_ref.name) == ("Pod", "pod-1")
    (port,) = EndpointSlice.model_validate(SLICE).ports
    assert (port.name, port.port, port.protocol) == ("http", 8000, "TCP")

    read = Pod.model_validate(POD)
    assert (read.status.phase, read.status.pod_ip) == ("Running", "10.0.0.7")
    assert [(c.type, c.status) for c in read.status.conditions] == [("Ready", "True")]
    assert read.metadata.deletion_timestamp is None
    leaving = Pod.model_validate(pod("ns", "p", {}, "10.0.0.7", deleting=True))
    assert leaving.metadata.deletion_timestamp is not None

    pool = InferencePool.model_validate(POOL)
    assert pool.spec.selector.match_labels == {"app": "vllm"}
    assert [port.number for port in pool.spec.target_ports] == [8000, 8001]

    assert ConfigMap.model_validate(MAP).data == {"models.yaml": "models: []"}


@pytest.mark.parametrize(
    ("kind", "body"), [(EndpointSlice, SLICE), (Pod, POD), (InferencePool, POOL)]
)
def test_skips_fields_of_a_newer_server(kind: type[KubernetesObject], body: Json) -> None:
    assert kind.model_validate(with_news(body)) == kind.model_validate(body)


def test_reads_a_newer_config_map() -> None:
    newer = {**MAP, "immutable": True, "binaryData": {"a": "AA=="}, "newField": 1}
    assert ConfigMap.model_validate(newer) == ConfigMap.model_validate(MAP)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_name_is_required(kind: type[KubernetesObject]) -> None:
    assert kind.model_validate(NAMED).metadata.name == "x"
    nameless: list[object] = [{}, {"metadata": {}}, {"metadata": {"name": None}}]
    for broken in (*nameless, {"metadata": None}, {"metadata": 7}, [], "x", 7, None):
        with pytest.raises(ValidationError):
            kind.model_validate(broken)


@pytest.mark.parametrize(
    "nulls",
    [
        {"endpoints": None, "ports": None},
        {"endpoints": [], "ports": []},
        {"endpoints": [{"addresses": None, "conditions": None, "targetRef": None}]},
        {"endpoints": [{"addresses": ["10.0.0.7"], "conditions": {"ready": None}}]},
        {"ports": [{"name": None, "port": None, "protocol": None}]},
    ],
)
def test_null_means_absent_in_a_slice(nulls: Json) -> None:
    read = EndpointSlice.model_validate(NAMED | nulls)
    assert all(endpoint.target_ref is None for endpoint in read.endpoints)


@pytest.mark.parametrize(
    "status", [{}, {"podIP": None}, {"conditions": None}, {"conditions": [], "phase": "Pending"}]
)
def test_pod_can_have_no_address(status: Json) -> None:
    read = Pod.model_validate({**NAMED, "status": status})
    assert (read.status.pod_ip, read.status.conditions) == (None, ())


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"selector": {}, "targetPorts": []},
        {"selector": {"matchLabels": None}, "targetPorts": None},
    ],
)
def test_pool_can_select_nothing(spec: Json) -> None:
    read = InferencePool.model_validate({**NAMED, "spec": spec}).spec
    assert (read.selector.match_labels, read.target_ports) == ({}, ())


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": {}}])
def test_config_map_can_be_empty(body: Json) -> None:
    assert ConfigMap.model_validate(NAMED | body).data == {}
