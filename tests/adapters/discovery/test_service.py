from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.discovery import watched_source
from extproc.core.schema import ServiceSpec
from tests.adapters.discovery.scenes import Scene
from tests.adapters.documents import eventually

pytestmark = pytest.mark.usefixtures("quick")


TERMINATING = {"ready": False, "serving": True, "terminating": True}


class TestServiceSource:
    async def test_endpoints_are_known_after_watch(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1", "b": "10.0.0.2"})
        assert scene.discovery.endpoints(scene.service) == ()
        await scene.discovery.watch([scene.service])
        assert scene.published == [
            {f"{scene.namespace}/a": "10.0.0.1:8000", f"{scene.namespace}/b": "10.0.0.2:8000"}
        ]
        assert scene.observed.found(scene.service) == scene.published[0]
        assert scene.discovery.why_not_synced() is None

    async def test_service_without_endpoints_is_synced(self, scene: Scene) -> None:
        await scene.discovery.watch([scene.service])
        assert scene.published == [{}]
        assert scene.discovery.why_not_synced() is None

    async def test_added_and_removed_endpoints_are_published(self, scene: Scene) -> None:
        await scene.discovery.watch([scene.service])
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.becomes(a="10.0.0.1:8000")
        await scene.put_slice("t", {"b": "10.0.0.2"})
        await scene.becomes(a="10.0.0.1:8000", b="10.0.0.2:8000")
        await scene.put_slice("s", {"a": "10.0.0.1"}, TERMINATING)
        await scene.becomes(b="10.0.0.2:8000")
        await scene.put_slice("t", {"b": "10.0.0.2"}, TERMINATING)
        await scene.becomes(a="10.0.0.1:8000", b="10.0.0.2:8000")
        await scene.server.delete("EndpointSlice", scene.namespace, "t")
        await scene.becomes(a="10.0.0.1:8000")
        await scene.server.delete("EndpointSlice", scene.namespace, "s")
        await scene.becomes()

    async def test_unchanged_endpoints_are_not_published_again(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.discovery.watch([scene.service])
        # A new slice replaces the old one, as controllers do it.
        await scene.put_slice("t", {"a": "10.0.0.1"})
        await scene.server.delete("EndpointSlice", scene.namespace, "s")
        await scene.put_slice("t", {"a": "10.0.0.1", "b": "10.0.0.2"})
        await scene.becomes(a="10.0.0.1:8000", b="10.0.0.2:8000")
        assert len(scene.published) == 2

    async def test_burst_of_changes_is_published_once(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watched_source, "GATHER_SECONDS", 2)
        await scene.discovery.watch([scene.service])
        for number in range(20):
            await scene.put_slice(f"s-{number}", {f"pod-{number}": f"10.0.0.{number}"})
        await eventually(lambda: len(scene.published) == 2)
        assert [len(one) for one in scene.published] == [0, 20]

    async def test_requests_only_slices_of_its_service_and_namespace(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.put_slice("other", {"b": "10.0.0.2"}, service="other")
        await scene.discovery.watch([scene.service])
        await scene.watched("endpointslices")
        assert scene.names == [["a"]]
        assert len(await scene.server.requests()) == 2
        for one in await scene.server.requests():
            assert (one["resource"], one["namespace"]) == ("endpointslices", scene.namespace)
            assert one["query"]["labelSelector"] == "kubernetes.io/service-name=vllm"
        assert [one["verb"] for one in await scene.requests()] == ["list", "watch"]

    async def test_service_of_several_models_is_watched_once(self, scene: Scene) -> None:
        same = ServiceSpec(namespace=scene.namespace, name="vllm", port="http")
        await scene.discovery.watch([scene.service, same, scene.service])
        await scene.discovery.watch([same])
        await scene.watched("endpointslices")
        assert [one["verb"] for one in await scene.requests()] == ["list", "watch"]
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.becomes(a="10.0.0.1:8000")
        assert scene.names == [[], ["a"]]

    async def test_two_ports_are_two_sources(self, scene: Scene) -> None:
        by_number = ServiceSpec(namespace=scene.namespace, name="vllm", port=9000)
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.discovery.watch([scene.service, by_number])
        assert scene.observed.found(scene.service)
        assert not scene.observed.found(by_number)
        assert scene.observed.refused == [(str(by_number), "undeclared_port")]

    async def test_keeps_endpoints_while_server_is_away(self, scene: Scene) -> None:
        await scene.put_slice("s", {"a": "10.0.0.1"})
        await scene.discovery.watch([scene.service])
        await scene.watched("endpointslices")
        await scene.server.faults(listening=False)
        await scene.put_slice("s", {"b": "10.0.0.2"})
        await asyncio.sleep(0.2)
        assert scene.discovery.age(scene.service) > 0.2
        assert scene.names == [["a"]]
        assert scene.discovery.why_not_synced() is None, "a synced reflector stays synced"
        await scene.server.faults(listening=True)
        await scene.becomes(b="10.0.0.2:8000")
        assert scene.discovery.age(scene.service) < 0.2
