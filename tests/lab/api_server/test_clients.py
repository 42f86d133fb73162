"""kubectl and the official Python client against the stand-in API server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import pytest
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from extproc.lab.api_server.builders import endpoint_slice, inference_pool, pod
from extproc.lab.api_server.process import StandInApiServer
from extproc.lab.stack.processes import until
from tests.lab.api_server.api import (
    KUBECTL,
    SOON,
    Api,
    new_watch,
)


async def kubectl(server: StandInApiServer, *arguments: str, stdin: str = "") -> str:
    """Return the output of kubectl, followed by an exit code other than 0."""
    directory = server.kubeconfig.parent / "kubectl"
    process = await asyncio.create_subprocess_exec(
        *(str(KUBECTL), "--kubeconfig", str(server.kubeconfig), "--cache-dir", str(directory)),
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 10)
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode() + (f"exit {process.returncode}" if process.returncode else "")


class TestKubectl:
    async def test_applies_reads_changes_and_deletes(self, api: Api) -> None:
        slices = [("127.0.0.1", "p", {"ready": True})]
        for resource, name, body in (
            ("configmaps", "configmap/a", api.map("a", "1")),
            ("pods", "pod/a", pod(api.namespace, "a", {"app": "x"}, "127.0.0.1")),
            (
                "endpointslices",
                "endpointslice.discovery.k8s.io/a",
                endpoint_slice("s", api.namespace, "a", slices),
            ),
            (
                "inferencepools",
                "inferencepool.inference.networking.k8s.io/a",
                inference_pool(api.namespace, "a", {"app": "x"}, [8000]),
            ),
        ):
            apply = ("apply", "--validate=false", "-f", "-")
            own = ("-n", api.namespace)
            assert await kubectl(api.server, *apply, stdin=json.dumps(body)) == f"{name} created\n"
            assert (
                await kubectl(api.server, *apply, stdin=json.dumps(body)) == f"{name} unchanged\n"
            )
            body["metadata"]["labels"] = {"new": "label"}
            changed = await kubectl(api.server, *apply, stdin=json.dumps(body))
            assert changed == f"{name} configured\n"
            assert (await kubectl(api.server, *own, "get", resource, "-l", "new=label")).split()[
                :2
            ] == ["NAME", "AGE"]
            read = json.loads(await kubectl(api.server, *own, "get", resource, "a", "-o", "json"))
            assert read["metadata"]["labels"] == {"new": "label"}
            assert "deleted" in await kubectl(api.server, *own, "delete", resource, "a")
            gone = await kubectl(api.server, *own, "get", resource, "a")
            assert "(NotFound)" in gone
            assert gone.endswith("exit 1")

    async def test_watches(self, api: Api) -> None:
        await api.put("a")
        watching = asyncio.create_task(
            kubectl(
                api.server,
                *("-n", api.namespace, "get", "configmaps", "--watch", "-o", "name"),
                "--request-timeout=1s",
            )
        )
        await until(lambda: self.watches(api), SOON, "kubectl to watch")
        await api.put("b")
        lines = (await watching).splitlines()
        assert lines[:2] == ["configmap/a", "configmap/b"]

    async def watches(self, api: Api) -> bool:
        return any(one["verb"] == "watch" for one in await api.server.requests())

    async def test_prints_forbidden_requests(self, api: Api) -> None:
        await api.server.rbac([])
        told = await kubectl(api.server, "-n", api.namespace, "get", "pods")
        assert "Error from server (Forbidden): pods is forbidden" in told


class TestOfficialClient:
    async def test_reads_and_writes(self, api: Api, official: client.ApiClient) -> None:
        core, discovery = client.CoreV1Api(official), client.DiscoveryV1Api(official)
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"), data={"key": "1"})
        created = await core.create_namespaced_config_map(api.namespace, body)
        created.data = {"key": "2"}
        await core.replace_namespaced_config_map("a", api.namespace, created)
        with pytest.raises(ApiException) as error:
            await core.replace_namespaced_config_map("a", api.namespace, created)
        assert error.value.status == 409
        await core.patch_namespaced_config_map("a", api.namespace, {"data": {"other": "3"}})
        read = await core.read_namespaced_config_map("a", api.namespace)
        assert read.data == {"key": "2", "other": "3"}
        await core.delete_namespaced_config_map("a", api.namespace)
        ready = [("127.0.0.1", "p", {"ready": True})]
        await api.server.apply(endpoint_slice("s", api.namespace, "x", ready))
        slices = await discovery.list_namespaced_endpoint_slice(
            api.namespace, label_selector="kubernetes.io/service-name=s"
        )
        [endpoint] = slices.items[0].endpoints or []
        assert endpoint.addresses == ["127.0.0.1"]

    async def test_writes_events(self, api: Api, official: client.ApiClient) -> None:
        event = client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name="a."),
            involved_object=client.V1ObjectReference(kind="ConfigMap", name="a"),
            reason="Because",
            message="why not",
            type="Warning",
        )
        await client.CoreV1Api(official).create_namespaced_event(api.namespace, event)
        [found] = await api.server.objects("events", api.namespace)
        assert found["reason"] == "Because"
        assert found["metadata"]["name"].startswith("a.")

    async def test_reads_pools(self, api: Api, official: client.ApiClient) -> None:
        await api.server.apply(inference_pool(api.namespace, "pool", {"app": "x"}, [8000]))
        pool: Any = await client.CustomObjectsApi(official).get_namespaced_custom_object(
            "inference.networking.k8s.io", "v1", api.namespace, "inferencepools", "pool"
        )
        assert pool["spec"]["targetPorts"] == [{"number": 8000}]

    async def test_watches_changes(self, api: Api, official: client.ApiClient) -> None:
        await api.put("a")
        types = []
        async with new_watch() as watch:
            async for event in watch.stream(
                client.CoreV1Api(official).list_namespaced_config_map,
                api.namespace,
                timeout_seconds=1,
                allow_watch_bookmarks=True,
            ):
                types.append(event["type"])
                if len(types) == 1:
                    await api.put("a", value="new")
            assert types == ["ADDED", "MODIFIED", "BOOKMARK"]
            assert watch.resource_version == await api.version()

    async def test_watch_raises_410(self, api: Api, official: client.ApiClient) -> None:
        version = await api.version()
        await api.put("a")
        await api.server.compact()
        events = new_watch().stream(
            client.CoreV1Api(official).list_namespaced_config_map,
            api.namespace,
            resource_version=version,
            timeout_seconds=5,
        )
        with pytest.raises(ApiException) as error:
            await anext(events)
        assert error.value.status == 410
