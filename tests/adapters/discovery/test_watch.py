from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest

from extproc.adapters.discovery import discovery, watched_source
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.core.schema import ServiceSpec, Source
from extproc.lab.api_server.builders import inference_pool
from tests.adapters.discovery.scenes import POOL, SERVICE, Observed, Scene, observed
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedCluster,
    Watched,
    at,
)
from tests.extent import limit

pytestmark = pytest.mark.usefixtures("quick")


class TestWatch:
    async def test_waits_for_first_response_about_every_source(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.put_slice("t", {"b": "10.0.0.2"}, service="other")
        await scene.server.faults(list_delay=0.2)
        other = ServiceSpec(namespace=scene.namespace, name="other", port="http")
        await scene.discovery.watch([scene.service, other])
        assert scene.observed.found(scene.service)
        assert scene.observed.found(other)

    async def test_does_not_wait_after_a_failed_attempt(self, scene: Scene) -> None:
        await scene.server.faults(forbidden=["endpointslices"])
        began = monotonic()
        await scene.discovery.watch([scene.service])
        assert monotonic() - began < limit(2)
        why = scene.discovery.why_not_synced()
        assert why is not None
        assert why.startswith(f"service {scene.namespace}/vllm: 403 ")
        assert scene.published == []
        await scene.server.faults(forbidden=[])
        await eventually(lambda: scene.discovery.why_not_synced() is None)
        assert scene.published == [{}]

    async def test_waits_for_a_limited_time(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(discovery, "SETTLE_SECONDS", 0.1)
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.server.faults(frozen=True)
        await scene.discovery.watch([scene.service])
        assert scene.discovery.endpoints(scene.service) == ()
        assert scene.discovery.age(scene.service) >= 0.1
        why = scene.discovery.why_not_synced()
        assert why == f"service {scene.namespace}/vllm: waiting for the API server"
        await scene.server.faults(frozen=False)
        await scene.becomes(a="10.0.0.1:8000")

    async def test_needs_no_credentials_without_sources(self) -> None:
        async with observed(Cluster(Path("/nonexistent"), allow_loopback=False)) as one:
            await one.discovery.watch([])
            assert one.discovery.why_not_synced() is None

    async def test_needs_credentials_for_kubernetes_sources(self) -> None:
        async with observed(Cluster(Path("/nonexistent"), allow_loopback=False)) as one:
            with pytest.raises(KubernetesError, match="no credentials"):
                await one.discovery.watch([SERVICE, POOL])
            assert one.discovery.why_not_synced() is None, "it did not begin"

    async def test_can_be_cancelled(self) -> None:
        async with observed(ScriptedCluster(ScriptedApi())) as one:
            following = asyncio.create_task(one.discovery.watch([SERVICE, POOL]))
            await asyncio.sleep(0.05)
            following.cancel()
            with pytest.raises(asyncio.CancelledError):
                await following


class TestKeepOnly:
    async def test_stops_other_sources(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        other = ServiceSpec(namespace=f"{scene.namespace}-b", name="other", port="http")
        before = await scene.server.open_watches()
        await scene.discovery.watch([scene.service, other])

        def has_watches(count: int) -> Callable[[], Awaitable[bool]]:
            async def are_open() -> bool:
                return await scene.server.open_watches() == before + count

            return are_open

        await eventually(has_watches(2))
        await scene.discovery.keep_only([scene.service])
        await eventually(has_watches(1))
        assert scene.discovery.endpoints(scene.service)
        assert scene.discovery.age(other) == 0
        await scene.put_slice("t", {"b": "10.0.0.2"})
        await scene.becomes(a="10.0.0.1:8000", b="10.0.0.2:8000")

    async def test_forgets_endpoints_until_source_is_watched_again(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.discovery.watch([scene.service])
        await scene.discovery.keep_only([])
        assert scene.discovery.endpoints(scene.service) == ()
        await scene.put_slice("s", {"b": "10.0.0.2"})
        await scene.discovery.watch([scene.service])
        assert scene.names == [["a"], ["b"]]

    async def test_stops_source_that_is_not_synced(self, scene: Scene) -> None:
        await scene.server.faults(forbidden=["endpointslices"])
        await scene.discovery.watch([scene.service])
        await scene.discovery.keep_only([])
        assert scene.discovery.why_not_synced() is None

    async def test_cancels_pending_publication(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watched_source, "GATHER_SECONDS", 0.2)
        await scene.discovery.watch([scene.service])
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await asyncio.sleep(0.1)
        await scene.discovery.keep_only([])
        await asyncio.sleep(0.2)
        assert scene.published == [{}]

    @pytest.mark.parametrize("source", [SERVICE, POOL])
    async def test_can_be_cancelled(self, source: Source) -> None:
        lingering = Watched(stays_open=True, closes_in=0.1)
        listed = at("1", inference_pool("ns", "pool", {"app": "vllm"}, [8000]))
        api = ScriptedApi(
            endpointslices=[Listed("1"), lingering],
            inferencepools=[Listed("1", [listed]), lingering],
            pods=[Listed("1"), lingering],
        )
        one = Observed(ScriptedCluster(api))
        await one.discovery.watch([source])
        stopping = asyncio.create_task(one.discovery.keep_only(()))
        await asyncio.sleep(0.05)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await asyncio.sleep(0.25)
        assert asyncio.all_tasks() == {asyncio.current_task()}
