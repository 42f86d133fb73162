from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.kubernetes.errors import ApiStatusError
from extproc.lab.api_server.builders import inference_pool
from tests.adapters.discovery.scenes import POOL, Scene, observed
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    ScriptedApi,
    ScriptedCluster,
    ScriptedResponse,
)

pytestmark = pytest.mark.usefixtures("quick")


class TestInferencePoolSource:
    async def test_has_pods_that_match_the_selector(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm"})
        await scene.put_pod("a", "10.0.0.1")
        await scene.put_pod("b", "10.0.0.2", ready=False)
        await scene.put_pod("other", "10.0.0.3", app="other")
        await scene.discovery.watch([scene.pool])
        assert scene.observed.found(scene.pool) == {f"{scene.namespace}/a": "10.0.0.1:8000"}
        assert scene.names == [["a"]], "it was never published without its pods"
        assert scene.discovery.why_not_synced() is None

    async def test_requests_only_its_pool_and_pods(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm", "role": "decode"})
        await scene.server.apply(inference_pool(scene.namespace, "other", {"app": "x"}, [1]))
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.watched("pods")
        requests = {
            (
                one["verb"],
                one["resource"],
                one["namespace"],
                one["name"],
                one["query"].get("labelSelector"),
            )
            for one in await scene.server.requests()
        }
        assert requests == {
            ("list", "inferencepools", scene.namespace, "pool", None),
            ("watch", "inferencepools", scene.namespace, "pool", None),
            ("list", "pods", scene.namespace, "", "app=vllm,role=decode"),
            ("watch", "pods", scene.namespace, "", "app=vllm,role=decode"),
        }
        assert len(await scene.server.requests()) == 4

    async def test_added_and_removed_pods_are_published(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm"})
        await scene.discovery.watch([scene.pool])
        assert scene.published == [{}]
        await scene.put_pod("a", "10.0.0.1")
        await scene.becomes(a="10.0.0.1:8000")
        await scene.put_pod("b", "10.0.0.2")
        await scene.becomes(a="10.0.0.1:8000", b="10.0.0.2:8000")
        await scene.put_pod("a", "10.0.0.1", deleting=True)
        await scene.becomes(b="10.0.0.2:8000")
        await scene.put_pod("b", "10.0.0.2", app="other")
        await scene.becomes(a="10.0.0.1:8000")
        await scene.server.delete("Pod", scene.namespace, "a")
        await scene.becomes()

    async def test_keeps_old_pods_until_new_selector_is_listed(self, scene: Scene) -> None:
        await scene.put_pool({"app": "old"})
        await scene.put_pod("a", "10.0.0.1", app="old")
        await scene.put_pod("b", "10.0.0.2", app="new")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.server.faults(list_delay=0.3)
        await scene.put_pool({"app": "new"}, ports=[9000])
        await scene.becomes(b="10.0.0.2:9000")
        assert scene.names == [["a"], ["b"]]
        assert scene.published[0] == {f"{scene.namespace}/a": "10.0.0.1:8000"}
        # The old pods are not watched any more.
        await scene.put_pod("c", "10.0.0.3", app="old")
        await scene.put_pod("d", "10.0.0.4", app="new")
        await scene.becomes(b="10.0.0.2:9000", d="10.0.0.4:9000")

    async def test_keeps_old_pods_while_list_of_new_selector_fails(self, scene: Scene) -> None:
        await scene.put_pool({"app": "old"})
        await scene.put_pod("a", "10.0.0.1", app="old")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.server.faults(forbidden=["pods"])
        await scene.put_pool({"app": "new"})
        await asyncio.sleep(0.2)
        assert scene.names == [["a"]]
        # A change of the ports in the meantime does not affect the old pods.
        await scene.put_pool({"app": "new"}, ports=[9000])
        await asyncio.sleep(0.1)
        assert scene.names == [["a"]]
        assert scene.discovery.age(scene.pool) > 0.2
        await scene.server.faults(forbidden=[])
        await scene.becomes()

    async def test_changed_port_applies_to_known_pods(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm"}, ports=[8000])
        await scene.put_pod("a", "10.0.0.1")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.put_pool({"app": "vllm"}, ports=[9000])
        await scene.becomes(a="10.0.0.1:9000")
        await scene.put_pool({"app": "vllm"}, ports=[8000, 8001])
        await scene.becomes(**{"a:8000": "10.0.0.1:8000", "a:8001": "10.0.0.1:8001"})
        lists = [one["resource"] for one in await scene.requests("list")]
        assert sorted(lists) == ["inferencepools", "pods"]

    async def test_deleted_pool_has_no_endpoints_until_it_returns(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm"})
        await scene.put_pod("a", "10.0.0.1")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.server.delete("InferencePool", scene.namespace, "pool")
        await scene.becomes()
        assert scene.discovery.why_not_synced() is None
        await scene.put_pool({"app": "vllm"})
        await scene.becomes(a="10.0.0.1:8000")

    async def test_pool_can_be_created_later(self, scene: Scene) -> None:
        await scene.put_pod("a", "10.0.0.1")
        await scene.discovery.watch([scene.pool])
        assert scene.published == [{}]
        assert scene.discovery.why_not_synced() is None
        await scene.watched("inferencepools")
        await scene.put_pool({"app": "vllm"})
        await scene.becomes(a="10.0.0.1:8000")

    async def test_pool_without_selector_has_no_pods(self, scene: Scene) -> None:
        await scene.put_pool({})
        await scene.put_pod("a", "10.0.0.1")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        assert scene.published == [{}]
        assert {one["resource"] for one in await scene.requests()} == {"inferencepools"}

    async def test_is_not_synced_before_its_pods(self, scene: Scene) -> None:
        await scene.put_pool({"app": "vllm"})
        await scene.put_pod("a", "10.0.0.1")
        await scene.server.faults(forbidden=["pods"])
        await scene.discovery.watch([scene.pool])
        why = scene.discovery.why_not_synced()
        assert why is not None
        assert why.startswith(f"InferencePool {scene.namespace}/pool: 403 ")
        assert scene.published == []
        await scene.server.faults(forbidden=[])
        await scene.becomes(a="10.0.0.1:8000")
        assert scene.names == [["a"]]

    async def test_is_not_synced_if_cluster_lacks_the_resource(self) -> None:
        missing: list[ScriptedResponse] = [
            ApiStatusError(404, "the server could not find the resource")
        ]
        async with observed(ScriptedCluster(ScriptedApi(inferencepools=missing * 100))) as one:
            await one.discovery.watch([POOL])
            assert one.discovery.why_not_synced() == (
                "InferencePool ns/pool: 404 the server could not find the resource"
            )

    @pytest.mark.parametrize("plural", ["inferencepools", "pods"])
    async def test_age_grows_if_pool_or_pods_are_not_current(
        self, plural: str, scene: Scene
    ) -> None:
        await scene.put_pool({"app": "vllm"})
        await scene.put_pod("a", "10.0.0.1")
        await scene.discovery.watch([scene.pool])
        await scene.watched("inferencepools")
        await scene.watched("pods")
        await scene.server.faults(forbidden=[plural])
        await scene.server.drop_watches()
        await asyncio.sleep(0.25)
        assert scene.discovery.age(scene.pool) > 0.2
        assert scene.names == [["a"]]
        await scene.server.faults(forbidden=[])
        ports = iter(range(9000, 10000))

        async def is_young_when_there_is_news() -> bool:
            await scene.put_pool({"app": "vllm"}, ports=[next(ports)])
            await scene.put_pod("a", f"10.0.{next(ports) % 256}.1")
            return scene.discovery.age(scene.pool) < 0.2

        await eventually(is_young_when_there_is_news)
