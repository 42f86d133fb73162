from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import Source
from extproc.lab.api_server.builders import endpoint_slice
from tests.adapters.discovery.scenes import READY, SERVICE, Json, Scene, observed
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedCluster,
    at,
)

pytestmark = pytest.mark.usefixtures("quick")


def a_slice(version: str, address: str = "10.0.0.1") -> Json:
    return at(version, endpoint_slice("vllm", "ns", "vllm-1", [(address, "a", READY)]))


@pytest.mark.usefixtures("short_watches")
async def test_age_stays_small_without_changes(scene: Scene) -> None:
    await scene.discovery.watch([scene.service])
    await eventually(lambda: scene.discovery.age(scene.service) > 0.5)
    await eventually(lambda: scene.discovery.age(scene.service) < 0.5)
    assert scene.published == [{}]


async def test_age_of_unknown_source_is_zero() -> None:
    async with observed(ScriptedCluster(ScriptedApi())) as one:
        assert one.discovery.age(SERVICE) == 0


async def test_error_in_publish_does_not_end_discovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = ScriptedApi(endpointslices=[Listed("1", [a_slice("1")]), Listed("2", [a_slice("2")])])
    calls = []

    def publish(source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        calls.append(endpoints)
        raise ZeroDivisionError("ours")

    async with observed(ScriptedCluster(api)) as one:
        one.publish = publish  # type: ignore[method-assign]
        await one.discovery.watch([SERVICE])
        assert [found.address for found in one.discovery.endpoints(SERVICE)] == ["10.0.0.1:8000"]
        await eventually(lambda: api.verbs == ["list", "list", "watch"])
        assert one.discovery.why_not_synced() is None
