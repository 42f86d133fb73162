"""The load that discovery puts on the API server."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from extproc.adapters.kubernetes import shared_slices, turns
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


def services_of(scene: Scene, *names: str) -> list[ServiceSpec]:
    return [ServiceSpec(namespace=scene.namespace, name=one, port="http") for one in names]


async def verbs(scene: Scene) -> Counter[str]:
    return Counter(one["verb"] for one in await scene.requests())


class TestServicesOfANamespace:
    async def test_share_one_list_one_watch_and_one_connection(self, scene: Scene) -> None:
        services = services_of(scene, *(f"s{number}" for number in range(50)))
        for number, one in enumerate(services):
            await scene.put_slice(
                one.name, {f"p{number}": f"10.0.0.{number + 1}"}, service=one.name
            )
        before = await scene.server.open_watches()
        await scene.discovery.watch(services)
        await scene.watched("endpointslices")
        for number, one in enumerate(services):
            pod = {f"{scene.namespace}/p{number}": f"10.0.0.{number + 1}:8000"}
            assert scene.observed.found(one) == pod
        assert await verbs(scene) == {"list": 1, "watch": 1}
        assert await scene.server.open_watches() == before + 1
        assert len({one["client_port"] for one in await scene.requests()}) == 1
        # Each subscriber receives the changes of its own Service only.
        published = len(scene.published)
        await scene.put_slice("s7", {"new": "10.0.1.1"}, service="s7")
        await scene.becomes(new="10.0.1.1:8000")
        assert len(scene.published) == published + 1

    @pytest.mark.usefixtures("short_watches")
    async def test_renew_the_watch_on_the_same_connection(self, scene: Scene) -> None:
        await scene.discovery.watch(services_of(scene, "a", "b"))
        await scene.watched("endpointslices", times=4)
        assert len({one["client_port"] for one in await scene.requests()}) == 1
        assert (await verbs(scene))["list"] == 1

    async def test_lose_nothing_while_another_one_joins(self, scene: Scene) -> None:
        first, second = services_of(scene, "a", "b")
        await scene.put_slice("a", {"a1": "10.0.0.1"}, service="a")
        await scene.put_slice("b", {"b1": "10.0.0.9"}, service="b")
        await scene.discovery.watch([first])
        await scene.watched("endpointslices")
        await scene.server.faults(list_delay=60)
        joining = asyncio.create_task(scene.discovery.watch([second]))

        async def is_listed_again() -> bool:
            return (await verbs(scene))["list"] == 2

        await eventually(is_listed_again)
        await scene.put_slice("a", {"a2": "10.0.0.2"}, service="a")
        await scene.becomes(a2="10.0.0.2:8000")
        assert not scene.observed.found(second)
        why = scene.discovery.why_not_synced()
        assert why == f"service {scene.namespace}/b: waiting for the API server"
        joining.cancel()
        await asyncio.wait([joining])
        await scene.discovery.keep_only([first])
        await scene.put_slice("a", {"a3": "10.0.0.3"}, service="a")
        await scene.becomes(a3="10.0.0.3:8000")
        await scene.server.faults(list_delay=0)
        (third,) = services_of(scene, "c")
        await scene.put_slice("c", {"c1": "10.0.0.4"}, service="c")
        await scene.discovery.watch([third])
        assert list(scene.observed.found(third).values()) == ["10.0.0.4:8000"]
        assert list(scene.observed.found(first).values()) == ["10.0.0.3:8000"]
        await scene.put_slice("a", {"a4": "10.0.0.5"}, service="a")
        await scene.becomes(a4="10.0.0.5:8000")
        assert scene.discovery.why_not_synced() is None

    async def test_lose_nothing_while_the_watch_is_replaced(self, scene: Scene) -> None:
        first, second = services_of(scene, "a", "b")
        before = await scene.server.open_watches()
        await scene.discovery.watch([first])
        await scene.watched("endpointslices")
        for number in range(1, 100):
            await scene.put_slice("a", {f"a{number}": f"10.0.0.{number}"}, service="a")
            if number == 50:
                await scene.discovery.watch([second])
        await scene.becomes(a99="10.0.0.99:8000")
        assert await verbs(scene) == {"list": 2, "watch": 2}

        async def one_is_open() -> bool:
            return await scene.server.open_watches() == before + 1

        await eventually(one_is_open)

    async def test_keep_the_watch_when_one_leaves(self, scene: Scene) -> None:
        first, second = services_of(scene, "a", "b")
        await scene.discovery.watch([first, second])
        await scene.watched("endpointslices")
        await scene.discovery.keep_only([second])
        await scene.put_slice("a", {"a1": "10.0.0.1"}, service="a")
        await scene.put_slice("b", {"b1": "10.0.0.2"}, service="b")
        await scene.becomes(b1="10.0.0.2:8000")
        assert len(scene.published) == 3
        # It comes back without a list, because the watch still covers it.
        await scene.discovery.watch([first])
        await eventually(lambda: scene.discovery.why_not_synced() is None)
        assert list(scene.observed.found(first).values()) == ["10.0.0.1:8000"]
        assert await verbs(scene) == {"list": 1, "watch": 1}

    async def test_survive_an_error_of_one(self, scene: Scene) -> None:
        first, second = services_of(scene, "a", "b")
        await scene.discovery.watch([first, second])
        await scene.watched("endpointslices")
        await scene.discovery.keep_only([first])
        await scene.put_slice("b", {"b1": "10.0.0.2"}, service="b")
        await scene.put_slice("a", {"a1": "10.0.0.1"}, service="a")
        await scene.becomes(a1="10.0.0.1:8000")

        def fail(*_: object) -> None:
            raise ZeroDivisionError("ours")

        publish, scene.observed.publish = scene.observed.publish, fail  # type: ignore[method-assign,assignment]
        await scene.discovery.watch([second])
        scene.observed.publish = publish  # type: ignore[method-assign]
        await scene.put_slice("b", {"b2": "10.0.0.3"}, service="b")
        await scene.becomes(b2="10.0.0.3:8000")
        await scene.put_slice("a", {"a2": "10.0.0.4"}, service="a")
        await scene.becomes(a2="10.0.0.4:8000")

    async def test_are_watched_as_a_whole_if_their_names_are_long(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_slices, "_LONGEST_SELECTOR", 5)
        await scene.put_slice("a", {"a1": "10.0.0.1"}, service="a")
        await scene.put_slice("z", {"z1": "10.0.0.2"}, service="z")
        await scene.discovery.watch(services_of(scene, "a", "b", "c", "d"))
        await scene.discovery.watch(services_of(scene, "z"))
        assert list(scene.observed.found(services_of(scene, "z")[0]).values()) == ["10.0.0.2:8000"]
        await scene.watched("endpointslices")
        assert await verbs(scene) == {"list": 1, "watch": 1}
        queries = [one["query"]["labelSelector"] for one in await scene.requests()]
        assert queries == ["kubernetes.io/service-name"] * 2
