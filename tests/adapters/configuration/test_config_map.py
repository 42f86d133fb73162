from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from extproc.adapters.configuration.config_map import ModelsConfigMap
from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.kubernetes.cluster import Cluster
from extproc.adapters.kubernetes.errors import KubernetesError
from extproc.lab.api_server.builders import config_map, endpoint_slice
from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.documents import BROKEN, LLAMA, NO_CREDENTIALS, QWEN, Served, eventually
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedCluster,
    Watched,
    at,
    event,
)

pytestmark = pytest.mark.usefixtures("quick")

Json = dict[str, Any]

QUIET = 0.15
"""Wait in seconds after which a test assumes that nothing more happens."""

OTHER_BROKEN = b"models: {}\n"


class Scene:
    """A ConfigMap of the stand-in API server, and a configuration that watches it."""

    def __init__(self, server: StandInApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.served = Served(Cluster(server.kubeconfig, allow_loopback=False))
        self.source = source_of(self.served, namespace)
        self.watching: asyncio.Task[None] | None = None

    async def put(self, document: bytes) -> None:
        await self.put_data({"models.yaml": document.decode()})

    async def put_data(self, data: Mapping[str, str], **labels: str) -> None:
        body = config_map(self.namespace, "models", data)
        body["metadata"]["labels"] = labels
        await self.server.apply(body)

    async def delete(self) -> None:
        await self.server.delete("ConfigMap", self.namespace, "models")

    async def start(self, document: bytes = LLAMA) -> None:
        """Put a first document in force, and watch for changes."""
        await self.put(document)
        await self.source.load()
        self.follow()

    def follow(self) -> None:
        self.watching = asyncio.create_task(self.source.watch())

    async def stop(self) -> None:
        if self.watching is not None:
            assert not self.watching.done(), "it keeps watching"
            self.watching.cancel()
            await asyncio.wait([self.watching])
        await self.source.close()
        await self.served.close()

    async def serves(self, *models: str) -> None:
        await eventually(lambda: self.served.models == list(models))

    async def refuses(self, times: int = 1) -> None:
        """Wait until this many documents were refused."""
        await eventually(lambda: self.served.refusals() == times)

    def accepted(self) -> float:
        return self.served.sample("extproc_config_reloads_total", result="success")

    async def events(self) -> list[tuple[str, str, str]]:
        """Return type, reason and message of each Event, in order."""
        found = await self.server.objects("events", self.namespace)
        found.sort(key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [(one["type"], one["reason"], one["message"]) for one in found]

    async def has_events(self, *reasons: str) -> None:
        """Wait until there are Events with exactly these reasons."""

        async def are_created() -> bool:
            return [reason for _, reason, _ in await self.events()] == list(reasons)

        await eventually(are_created)

    async def asked(self) -> list[Json]:
        return [one for one in await self.server.requests() if one["namespace"] == self.namespace]

    async def watched(self) -> None:
        async def is_watched() -> bool:
            return any(one["verb"] == "watch" and one["status"] for one in await self.asked())

        await eventually(is_watched)


def source_of(served: Served, namespace: str = "ns") -> ModelsConfigMap:
    return ModelsConfigMap(
        namespace,
        "models",
        served.cluster,
        served.configuration,
        served.telemetry.discovery,
        Random(0),
    )


@pytest.fixture
async def scene(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    before = asyncio.all_tasks()
    scene = Scene(server, namespace)
    yield scene
    await scene.stop()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "no task is left"


@asynccontextmanager
async def following(api: ScriptedApi) -> AsyncIterator[Served]:
    """Watch a scripted API after its first document."""
    served = Served(ScriptedCluster(api))
    source = source_of(served)
    await source.load()
    task = asyncio.create_task(source.watch())
    yield served
    assert not task.done(), "it keeps watching"
    task.cancel()
    await asyncio.wait([task])
    await source.close()
    await served.close()


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
        await asyncio.wait_for(loading, 5)
        assert scene.served.models == ["llama"]

    async def test_load_waits_for_permission(self, scene: Scene) -> None:
        await scene.put(LLAMA)
        await scene.server.faults(forbidden=["configmaps"])
        loading = asyncio.create_task(scene.source.load())
        await eventually(lambda: scene.source.trouble.startswith("403 "))
        assert not loading.done()
        await scene.server.faults(forbidden=[])
        await asyncio.wait_for(loading, 5)
        assert scene.served.models == ["llama"]

    async def test_load_waits_for_the_server(self, scene: Scene) -> None:
        await scene.put(LLAMA)
        await scene.server.faults(listening=False)
        loading = asyncio.create_task(scene.source.load())
        await eventually(lambda: "waiting" not in scene.source.trouble)
        await scene.server.faults(listening=True)
        await asyncio.wait_for(loading, 5)
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


class TestChange:
    async def test_takes_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(QWEN)
        await scene.serves("qwen")
        await scene.put(LLAMA)
        await scene.serves("llama")
        assert scene.accepted() == 3
        assert await scene.events() == []

    async def test_of_other_keys_is_ignored(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put_data({"models.yaml": LLAMA.decode(), "other": "x"}, touched="yes")
        await asyncio.sleep(QUIET)
        assert scene.accepted() == 1

    async def test_of_large_document_arrives_as_watch_event(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.watched()
        await scene.put(QWEN + b"#" * 1_000_000)
        await scene.serves("qwen")
        assert [one["verb"] for one in await scene.asked()] == ["list", "watch"]

    async def test_during_outage_takes_effect_when_server_returns(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.server.faults(listening=False)
        await scene.put(QWEN)
        await asyncio.sleep(QUIET)
        assert scene.served.models == ["llama"]
        await scene.server.faults(listening=True)
        await scene.serves("qwen")

    async def test_last_of_a_hundred_is_in_force(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        for turn in range(100):
            await scene.put(LLAMA.replace(b"llama", f"llama-{turn}".encode()))
        await scene.serves("llama-99")
        assert scene.served.refusals() == 0

    async def test_during_another_change_is_not_lost(self) -> None:
        changes = [
            event("MODIFIED", "2", models(QWEN)),
            event("MODIFIED", "3", models(BROKEN)),
            event("MODIFIED", "4", models(LLAMA)),
            event("MODIFIED", "5", models(QWEN)),
        ]
        listed = Listed("1", [at("1", models(LLAMA))])
        async with following(ScriptedApi(configmaps=[listed, Watched(changes)])) as served:
            await eventually(lambda: served.models == ["qwen"])
            await asyncio.sleep(QUIET)
            assert served.models == ["qwen"]

    async def test_requests_no_other_object(self, scene: Scene) -> None:
        await scene.server.apply(config_map(scene.namespace, "kube-root-ca.crt", {}))
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        asked = await scene.server.requests()
        assert [(one["verb"], one["resource"]) for one in asked] == [
            ("list", "configmaps"),
            ("watch", "configmaps"),
            ("create", "events"),
        ]
        for one in asked[:2]:
            assert one["query"]["fieldSelector"] == "metadata.name=models"
            assert one["namespace"] == scene.namespace


class TestInvalidDocument:
    async def test_leaves_last_valid_document_in_force(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.refuses()
        assert scene.served.models == ["llama"]
        assert scene.served.sample("extproc_config_last_reload_successful") == 0
        await scene.put(QWEN)
        await scene.serves("qwen")
        assert scene.served.sample("extproc_config_last_reload_successful") == 1

    @pytest.mark.parametrize(
        "document", [b"", b"\x00", b"[" * 3000, b"models: !!bool maybe", b"{? [a] : b}", b"7"]
    )
    async def test_can_have_any_contents(self, document: bytes, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(document)
        await scene.refuses()
        assert scene.served.models == ["llama"]
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_can_be_invalid_unicode(self) -> None:
        lone = config_map("ns", "models", {"models.yaml": "models: \ud800"})
        changes = [event("MODIFIED", "2", lone), event("MODIFIED", "3", models(QWEN))]
        listed = Listed("1", [at("1", models(LLAMA))])
        watches = [Watched(changes[:1]), Watched(changes[1:])]
        async with following(ScriptedApi(configmaps=[listed, *watches])) as served:
            await eventually(lambda: served.models == ["qwen"])
            assert served.refusals() == 1

    async def test_creates_an_event_on_the_config_map(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        ((kind, _, message),) = await scene.events()
        assert kind == "Warning"
        assert message == "line 2, column 1: did not find expected node content"
        (created,) = await scene.server.objects("events", scene.namespace)
        (about,) = await scene.server.objects("configmaps", scene.namespace)
        for field in ("name", "namespace", "uid", "resourceVersion"):
            assert created["involvedObject"][field] == about["metadata"][field]

    async def test_each_one_creates_an_event_and_so_does_the_next_valid_one(
        self, scene: Scene
    ) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.refuses(1)
        await scene.put(OTHER_BROKEN)
        await scene.refuses(2)
        await scene.put(QWEN)
        refused_and_mended = ["ModelsRefused", "ModelsRefused", "ModelsAccepted"]
        await scene.has_events(*refused_and_mended)
        assert (await scene.events())[-1][0] == "Normal"
        await scene.put(LLAMA)
        await scene.serves("llama")
        await scene.put(BROKEN)
        await scene.has_events(*refused_and_mended, "ModelsRefused")

    async def test_creates_only_one_event(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        await scene.put_data({"models.yaml": BROKEN.decode()}, touched="yes")
        await self.lists_again(scene)
        await asyncio.sleep(QUIET)
        await scene.has_events("ModelsRefused")
        assert scene.served.refusals() == 1
        assert messages(caplog, logging.ERROR) == ["models document refused"]

    async def test_missing_key_creates_only_one_event(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.put_data({})
        await scene.has_events("ModelsRefused")
        await scene.put_data({"other": "x"})
        await scene.put_data({}, touched="yes")
        await self.lists_again(scene)
        await asyncio.sleep(QUIET)
        assert [message for *_, message in await scene.events()] == [
            "there is no key 'models.yaml'"
        ]
        await scene.put(LLAMA)
        await scene.has_events("ModelsRefused", "ModelsAccepted")

    async def lists_again(self, scene: Scene) -> None:
        """Make the next watch list again, as after a long outage of the API server."""
        await scene.server.apply(config_map(f"{scene.namespace}-elsewhere", "x", {}))
        await scene.server.compact()
        await scene.server.drop_watches()

        async def is_listed() -> bool:
            return [one["verb"] for one in await scene.asked()].count("list") == 2

        await eventually(is_listed)

    async def test_failed_event_does_no_harm(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.server.faults(forbidden=["events"])
        await scene.put(BROKEN)
        await scene.refuses()
        await scene.put(QWEN)
        await scene.serves("qwen")
        await eventually(lambda: len(messages(caplog, logging.WARNING)) == 2)
        assert messages(caplog, logging.WARNING) == ["Event not created"] * 2
        assert await scene.events() == []


class TestDeletedConfigMap:
    async def test_leaves_last_valid_document_in_force(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await eventually(
            lambda: (
                messages(caplog, logging.WARNING) == ["ConfigMap deleted, last valid models kept"]
            )
        )
        assert scene.served.models == ["llama"]
        assert scene.served.sample("extproc_config_last_reload_successful") == 1
        assert await scene.events() == []

    async def test_restored_unchanged_has_no_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(LLAMA)
        await asyncio.sleep(QUIET)
        assert scene.accepted() == 1
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_restored_with_changes_takes_effect(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(QWEN)
        await scene.serves("qwen")

    async def test_restored_with_invalid_document_is_refused(self, scene: Scene) -> None:
        await scene.start(LLAMA)
        await scene.delete()
        await scene.put(BROKEN)
        await scene.has_events("ModelsRefused")
        assert scene.served.models == ["llama"]
        await scene.delete()
        await scene.put(LLAMA)
        await scene.has_events("ModelsRefused", "ModelsAccepted")


def models(document: bytes) -> Json:
    return config_map("ns", "models", {"models.yaml": document.decode()})


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]
