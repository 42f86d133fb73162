from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from extproc.adapters.discovery import discovery, watched_source
from extproc.adapters.discovery.discovery import Discovery
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import ApiStatusError, KubernetesError
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.schema import InferencePoolSpec, ServiceSpec, Source
from extproc.lab.api_server.builders import endpoint_slice, inference_pool, pod
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.scripted import (
    Answer,
    Listed,
    ScriptedApi,
    ScriptedCluster,
    Watched,
    at,
)

pytestmark = pytest.mark.usefixtures("quick")

Json = dict[str, Any]

READY = {"ready": True, "serving": True, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
SERVICE = ServiceSpec(namespace="ns", name="vllm", port="http")
POOL = InferencePoolSpec(namespace="ns", name="pool")


class Observed:
    """A discovery with everything that it published and rejected, in order."""

    def __init__(self, cluster: Cluster) -> None:
        self.published: list[dict[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.discovery = Discovery(cluster, lambda *found: self.publish(*found), self, Random(0))

    def found(self, source: Source) -> dict[str, str]:
        return {one.name: one.address for one in self.discovery.endpoints(source)}

    def endpoint_refused(self, source: Source, reason: str) -> None:
        self.refused.append((str(source), reason))

    def looked_up(self, result: str) -> None:
        pass

    def listed(self, resource: str, result: str) -> None:
        pass

    def watched(self, resource: str, result: str) -> None:
        pass

    def publish(self, source: Source, endpoints: tuple[Endpoint, ...]) -> None:
        assert self.discovery.endpoints(source) == endpoints
        self.published.append({one.name: one.address for one in endpoints})


@asynccontextmanager
async def observed(cluster: Cluster) -> AsyncIterator[Observed]:
    before = asyncio.all_tasks()
    one = Observed(cluster)
    yield one
    await one.discovery.keep_only(())
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "no task is left"
    await cluster.close()


class Scene:
    """A namespace of the stand-in API server, and a discovery that watches it."""

    def __init__(self, server: StandInApiServer, namespace: str, observed: Observed) -> None:
        self.server = server
        self.namespace = namespace
        self.observed = observed
        self.discovery = observed.discovery
        self.service = ServiceSpec(namespace=namespace, name="vllm", port="http")
        self.pool = InferencePoolSpec(namespace=namespace, name="pool")

    async def put_slice(
        self,
        name: str,
        endpoints: Mapping[str, str],
        conditions: Mapping[str, bool] = READY,
        service: str = "vllm",
        port: int = 8000,
    ) -> None:
        """Create or replace a slice with these addresses by pod."""
        those = [(address, pod_name, conditions) for pod_name, address in endpoints.items()]
        await self.server.apply(endpoint_slice(service, self.namespace, name, those, port=port))

    async def put_pool(self, selector: Mapping[str, str], ports: Sequence[int] = (8000,)) -> None:
        await self.server.apply(inference_pool(self.namespace, "pool", selector, ports))

    async def put_pod(self, name: str, ip: str, app: str = "vllm", **more: bool) -> None:
        await self.server.apply(pod(self.namespace, name, {"app": app}, ip, **more))

    async def asked(self, verb: str = "") -> list[Json]:
        found = [one for one in await self.server.requests() if one["namespace"] == self.namespace]
        return [one for one in found if verb in ("", one["verb"])]

    async def watched(self, plural: str, times: int = 1) -> None:
        """Wait until this many watches of a resource were opened."""

        async def is_watched() -> bool:
            watches = [one for one in await self.asked("watch") if one["resource"] == plural]
            return [one["status"] for one in watches].count(200) >= times

        await eventually(is_watched)

    async def becomes(self, **addresses: str) -> None:
        """Wait until exactly these pods are known, with these addresses."""
        wanted = {f"{self.namespace}/{name}": address for name, address in addresses.items()}
        await eventually(lambda: self.published[-1:] == [wanted])

    @property
    def published(self) -> list[dict[str, str]]:
        return self.observed.published

    @property
    def names(self) -> list[list[str]]:
        """Pod names of each published set."""
        return [[name.partition("/")[2] for name in one] for one in self.published]


@pytest.fixture
async def scene(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    cluster = Cluster(server.kubeconfig, allow_loopback=False)
    async with observed(cluster) as one:
        yield Scene(server, namespace, one)


@pytest.fixture
async def local(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    """A scene in which loopback addresses are allowed."""
    cluster = Cluster(server.kubeconfig, allow_loopback=True)
    async with observed(cluster) as one:
        yield Scene(server, namespace, one)


def a_slice(version: str, address: str = "10.0.0.1") -> Json:
    return at(version, endpoint_slice("vllm", "ns", "vllm-1", [(address, "a", READY)]))


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
        monkeypatch.setattr(watched_source, "GATHER_SECONDS", 0.3)
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
        assert [one["verb"] for one in await scene.asked()] == ["list", "watch"]

    async def test_service_of_several_models_is_watched_once(self, scene: Scene) -> None:
        same = ServiceSpec(namespace=scene.namespace, name="vllm", port="http")
        await scene.discovery.watch([scene.service, same, scene.service])
        await scene.discovery.watch([same])
        await scene.watched("endpointslices")
        assert [one["verb"] for one in await scene.asked()] == ["list", "watch"]
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
        assert monotonic() - began < 2
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
        other = ServiceSpec(namespace=scene.namespace, name="other", port="http")
        await scene.discovery.watch([scene.service, other])
        await scene.watched("endpointslices", times=2)
        open_before = await scene.server.open_watches()
        await scene.discovery.keep_only([scene.service])

        async def is_closed() -> bool:
            return await scene.server.open_watches() == open_before - 1

        await eventually(is_closed)
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


class TestRejectedAddress:
    POISON = ("127.0.0.1", "240.0.0.1")

    async def poison(self, scene: Scene, *good: str) -> None:
        """Create a slice of bad and good addresses."""
        named = {f"bad-{number}": address for number, address in enumerate(self.POISON)}
        named |= {f"pod-{number}": address for number, address in enumerate(good)}
        await scene.put_slice("s", named)

    async def test_is_counted_once_while_it_stays(self, scene: Scene) -> None:
        await self.poison(scene, "10.0.0.1")
        await scene.discovery.watch([scene.service])
        assert scene.names == [["pod-0"]]
        shown = str(scene.service)
        assert sorted(scene.observed.refused) == [(shown, "loopback"), (shown, "reserved")]
        await self.poison(scene, "10.0.0.1", "10.0.0.2")
        await eventually(lambda: scene.names == [["pod-0"], ["pod-0", "pod-1"]])
        assert len(scene.observed.refused) == 2
        await scene.put_slice("s", {"a": "10.0.0.9"})
        await scene.becomes(a="10.0.0.9:8000")
        await self.poison(scene)
        await scene.becomes()
        assert len(scene.observed.refused) == 4

    async def test_is_logged_once_even_if_it_returns(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.poison(scene)
        await scene.discovery.watch([scene.service])
        await scene.put_slice("s", {"a": "10.0.0.9"})
        await scene.becomes(a="10.0.0.9:8000")
        await self.poison(scene)
        await scene.becomes()
        assert logged_addresses(caplog) == sorted(self.POISON)

    async def test_many_addresses_do_not_flood_the_log(
        self,
        scene: Scene,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(discovery, "_LOGGED_ADDRESSES", 5)
        await scene.put_slice("s", {f"bad-{i}": f"127.0.0.{i}" for i in range(1, 101)})
        await scene.discovery.watch([scene.service])
        assert len(scene.observed.refused) == 100
        assert len(logged_addresses(caplog)) == 5

    async def test_api_server_is_rejected(self, local: Scene) -> None:
        port = int(local.server.url.rpartition(":")[2])
        await local.put_slice("s", {"bad": "127.0.0.1"}, port=port)
        await local.put_slice("t", {"a": "127.0.0.1"})
        await local.discovery.watch([local.service])
        assert local.published == [{f"{local.namespace}/a": "127.0.0.1:8000"}]
        assert local.observed.refused == [(str(local.service), "api_server")]


def logged_addresses(caplog: pytest.LogCaptureFixture) -> list[str]:
    refusals = (r for r in caplog.records if r.getMessage() == "address rejected")
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return sorted(record.__dict__["fields"]["address"] for record in refusals)


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
        asked = {
            (
                one["verb"],
                one["resource"],
                one["namespace"],
                one["name"],
                one["query"].get("labelSelector"),
            )
            for one in await scene.server.requests()
        }
        assert asked == {
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
        lists = [one["resource"] for one in await scene.asked("list")]
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
        assert {one["resource"] for one in await scene.asked()} == {"inferencepools"}

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
        missing: list[Answer] = [ApiStatusError(404, "the server could not find the resource")]
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
