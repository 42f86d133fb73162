"""The sidecar with the manifests' Roles and models document, against a stand-in API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.lab.api_server.builders import config_map, endpoint_slice, pod
from extproc.lab.stack.processes import until
from tests.e2e.forked import ForkedApiServer, ForkedSidecar
from tests.extent import PATIENCE
from tests.manifests.builds import Build, Object, built

NAMESPACE = "inference"
READY = {"ready": True, "serving": True, "terminating": False}
VLLM = {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": "vllm-llama"}

# The objects for discovery in a cluster with two replicas.
REPLICAS: dict[str, list[Object]] = {
    "base": [
        endpoint_slice(
            "vllm-llama", NAMESPACE, f"vllm-llama-{n}", [(f"10.0.0.{n}", f"p{n}", READY)]
        )
        for n in (1, 2)
    ],
    "overlays/inference-pool": [pod(NAMESPACE, f"p{n}", VLLM, f"10.0.0.{n}") for n in (1, 2)],
}


@asynccontextmanager
async def sidecar_in(build: Build, directory: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Run a stand-in cluster with the build's objects and permissions, and a sidecar in it."""
    cluster = ForkedApiServer(directory)
    configured = ["--models-configmap", f"{NAMESPACE}/extproc-models"]
    configured += ["--kubeconfig", str(cluster.kubeconfig)]
    sidecar = ForkedSidecar(configured, directory)
    try:
        await cluster.start()
        # Flow control reads InferenceObjectives, if there is an InferencePool.
        models = yaml.safe_load(build.one("ConfigMap", "extproc-models")["data"]["models.yaml"])
        for model in models["models"]:
            model["flowControl"] = {}
        document = {"models.yaml": yaml.safe_dump(models)}
        await cluster.apply(config_map(NAMESPACE, "extproc-models", document))
        await cluster.apply(*REPLICAS[build.path])
        await cluster.apply(*build.of("InferencePool"))
        await cluster.rbac(build.of("Role"))
        await sidecar.start()
        yield cluster, sidecar
    finally:
        await sidecar.stop()
        await cluster.stop()


@pytest.mark.parametrize("path", sorted(REPLICAS))
async def test_permissions_are_sufficient_and_all_are_used(path: str, tmp_path: Path) -> None:
    async with sidecar_in(built(path), tmp_path) as (cluster, sidecar):
        expected = {(f"10.0.0.{n}:8000", f"{NAMESPACE}/p{n}") for n in (1, 2)}

        async def all_found() -> bool:
            (state,) = (await sidecar.state()).values()
            found = {(endpoint["address"], endpoint["name"]) for endpoint in state["endpoints"]}
            return found == expected

        await until(all_found, PATIENCE, "both endpoints")
        # It writes only an Event with the cause of a refusal.
        await cluster.apply(config_map(NAMESPACE, "extproc-models", {"models.yaml": "models: 1"}))

        async def event_created() -> bool:
            return bool(await cluster.objects("events", NAMESPACE))

        await until(event_created, PATIENCE, "an Event")
        # The sidecar uses every permission.
        granted = {
            (resource, verb)
            for role in built(path).of("Role")
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

        async def all_used() -> bool:
            asked = await cluster.requests()
            assert {request["status"] for request in asked} <= {0, 200, 201}
            needed = {(request["resource"], request["verb"]) for request in asked}
            assert needed <= granted
            return needed == granted

        await until(all_used, PATIENCE, "every permission")
