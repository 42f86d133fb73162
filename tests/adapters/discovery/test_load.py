"""The load that discovery puts on the API server."""

from __future__ import annotations

import pytest

from extproc.adapters.kubernetes import turns
from extproc.core.schema import ServiceSpec
from tests.adapters.discovery.scenes import Json, Scene
from tests.adapters.documents import eventually

pytestmark = pytest.mark.usefixtures("quick")


async def endpoint_requests(scene: Scene) -> list[Json]:
    return [one for one in await scene.server.requests() if one["resource"] == "endpointslices"]


class TestStart:
    async def test_of_many_sources_does_not_overload_the_server(self, scene: Scene) -> None:
        namespaces = [f"{scene.namespace}-{number}" for number in range(40)]
        services = [ServiceSpec(namespace=one, name="vllm", port="http") for one in namespaces]
        await scene.server.faults(list_delay=0.02, capacity=turns.MOST_AT_ONCE)
        await scene.discovery.watch(services)

        async def all_are_watched() -> bool:
            watches = [one for one in await endpoint_requests(scene) if one["verb"] == "watch"]
            return len(watches) == len(services)

        await eventually(all_are_watched)
        requests = await endpoint_requests(scene)
        assert {one["status"] for one in requests} == {200}
        assert max(one["queued"] for one in requests) <= turns.MOST_AT_ONCE
        assert scene.discovery.why_not_synced() is None
