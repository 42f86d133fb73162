from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.lab.api_server.builders import endpoint_slice
from tests.adapters.configuration.config_map.scenes import Scene, models, source_of
from tests.adapters.documents import BROKEN, LLAMA, NO_CREDENTIALS, Served, eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedCluster,
    at,
)
from tests.extent import PATIENCE

pytestmark = pytest.mark.usefixtures("quick")


class TestFirstDocument:
    async def test_takes_effect(self, scene: Scene) -> None:
        await scene.put(LLAMA)
        await scene.source.load()
        assert scene.served.models == ["llama"]
        assert scene.accepted() == 1
        assert await scene.events() == []

    async def test_load_waits_for_it(self, scene: Scene) -> None:
        loading = asyncio.create_task(scene.source.load())
        await asyncio.sleep(0)
        assert scene.source.trouble == "waiting for the API server"
        await scene.watched()
        assert scene.source.trouble == "not found"
        assert not loading.done()
        await scene.put(LLAMA)
        await asyncio.wait_for(loading, PATIENCE)
        assert scene.served.models == ["llama"]

    async def test_load_waits_for_permission(self, scene: Scene) -> None:
        await scene.put(LLAMA)
        await scene.server.faults(forbidden=["configmaps"])
        loading = asyncio.create_task(scene.source.load())
        await eventually(lambda: scene.source.trouble.startswith("403 "))
        assert not loading.done()
        await scene.server.faults(forbidden=[])
        await asyncio.wait_for(loading, PATIENCE)
        assert scene.served.models == ["llama"]

    async def test_load_waits_for_the_server(self, scene: Scene) -> None:
        await scene.put(LLAMA)
        await scene.server.faults(listening=False)
        loading = asyncio.create_task(scene.source.load())
        await eventually(lambda: "waiting" not in scene.source.trouble)
        await scene.server.faults(listening=True)
        await asyncio.wait_for(loading, PATIENCE)
        assert scene.served.models == ["llama"]

    async def test_trouble_is_reading_while_endpoints_are_awaited(self) -> None:
        service = b"models: [{name: a, service: {namespace: ns, name: vllm, port: http}}]"
        listed = Listed("1", [at("1", models(service))])
        api = ScriptedApi(configmaps=[listed], endpointslices=[])
        served = Served(ScriptedCluster(api))
        source = source_of(served)
        loading = asyncio.create_task(source.load())
        await eventually(lambda: api.verbs == ["list", "watch", "list"])
        assert source.trouble == "being read"
        loading.cancel()
        await source.close()
        await served.close()

    async def test_load_can_be_cancelled(self, scene: Scene) -> None:
        loading = asyncio.create_task(scene.source.load())
        await scene.watched()
        loading.cancel()
        await asyncio.wait([loading])
        assert loading.cancelled()

    async def test_invalid_document_raises_and_creates_an_event(self, scene: Scene) -> None:
        await scene.put(BROKEN)
        with pytest.raises(DocumentError) as refused:
            await scene.source.load()
        assert scene.served.models == []
        assert scene.served.refusals() == 1
        assert await scene.events() == [("Warning", "ModelsRefused", str(refused.value))]

    async def test_missing_key_is_invalid(self, scene: Scene) -> None:
        await scene.put_data({"models.yml": LLAMA.decode()})
        with pytest.raises(DocumentError, match=r"there is no key 'models\.yaml'"):
            await scene.source.load()

    async def test_load_needs_credentials(self) -> None:
        served = Served(Cluster(NO_CREDENTIALS, allow_loopback=False))
        source = source_of(served)
        with pytest.raises(KubernetesError, match="no credentials"):
            await source.load()
        await source.close()

    async def test_can_name_services(self, scene: Scene) -> None:
        endpoints = [("10.0.0.7", "pod-7", {"ready": True})]
        await scene.server.apply(endpoint_slice("vllm", scene.namespace, "s", endpoints))
        service = f"{{namespace: {scene.namespace}, name: vllm, port: http}}"
        await scene.put(f"models: [{{name: llama, service: {service}}}]".encode())
        await scene.source.load()
        assert scene.served.addresses("llama") == ["10.0.0.7:8000"]

    async def test_can_be_as_large_as_a_config_map(self, scene: Scene) -> None:
        await scene.put(LLAMA + b"#" * 1_000_000)
        await scene.source.load()
        assert scene.served.models == ["llama"]
