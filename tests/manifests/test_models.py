"""The models documents in the ConfigMaps."""

from __future__ import annotations

import pytest
import yaml

from extproc.adapters.configuration.document import parse
from tests.manifests.builds import Object, built

SERVICES = [
    "base",
    "standalone",
    "existing-envoy",
    "overlays/envoy-gateway",
    "overlays/istio",
]
POOLS = ["overlays/inference-pool", "overlays/inference-pool-istio"]


def document(path: str) -> str:
    text: str = built(path).one("ConfigMap", "extproc-models")["data"]["models.yaml"]
    return text


def models(path: str) -> list[Object]:
    found: list[Object] = yaml.safe_load(document(path))["models"]
    return found


@pytest.mark.parametrize("path", [*SERVICES, *POOLS])
def test_document_is_valid(path: str) -> None:
    assert parse(document(path).encode()).models


@pytest.mark.parametrize("path", SERVICES)
def test_service_is_the_model_servers_and_has_the_port(path: str) -> None:
    for model in models(path):
        named = model["service"]
        service = built("overlays/model-server").one("Service", named["name"])
        assert service["metadata"]["namespace"] == named["namespace"]
        assert named["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("path", POOLS)
def test_pool_exists(path: str) -> None:
    for model in models(path):
        pool = built(path).one("InferencePool", model["inferencePool"]["name"])
        assert pool["metadata"]["namespace"] == model["inferencePool"]["namespace"]


@pytest.mark.parametrize("path", [*SERVICES, *POOLS])
def test_model_server_serves_the_model(path: str) -> None:
    template = built("overlays/model-server").one("Deployment")["spec"]["template"]
    arguments = template["spec"]["containers"][0]["args"]
    for model in models(path):
        assert f"--served-model-name={model['name']}" in arguments
