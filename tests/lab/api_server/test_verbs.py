"""Objects and lists of the stand-in API server, over HTTP."""

from __future__ import annotations

import pytest

from extproc.lab.api_server.builders import config_map, endpoint_slice, inference_pool, pod
from tests.lab.api_server.api import (
    MERGE,
    STRATEGIC_MERGE,
    Api,
)


class TestObjects:
    async def test_are_created_read_changed_and_deleted(self, api: Api) -> None:
        created = await api.ask("POST", api.maps, api.map("a", "1"))
        assert created.status == 201
        changed = await api.ask("PUT", f"{api.maps}/a", {**created.json, "data": {"key": "2"}})
        assert changed.status == 200
        read = await api.get(f"{api.maps}/a")
        assert read.json == changed.json
        assert (read.json["kind"], read.json["apiVersion"]) == ("ConfigMap", "v1")
        assert read.json["data"] == {"key": "2"}
        deleted = await api.ask("DELETE", f"{api.maps}/a")
        assert (deleted.status, deleted.json["status"]) == (200, "Success")
        assert deleted.json["details"]["uid"] == created.json["metadata"]["uid"]
        assert (await api.get(f"{api.maps}/a")).status == 404

    async def test_deleting_a_pod_returns_it(self, api: Api) -> None:
        await api.server.apply(pod(api.namespace, "p", {}, "127.0.0.1"))
        deleted = await api.ask("DELETE", f"/api/v1/namespaces/{api.namespace}/pods/p")
        assert deleted.json["kind"] == "Pod"

    async def test_path_completes_the_object(self, api: Api) -> None:
        created = await api.ask("POST", api.maps, {"metadata": {"generateName": "a-"}})
        assert created.json["metadata"]["name"].startswith("a-")
        assert created.json["metadata"]["namespace"] == api.namespace
        assert created.json["kind"] == "ConfigMap"

    async def test_a_stale_put_is_a_conflict(self, api: Api) -> None:
        stale = (await api.ask("POST", api.maps, api.map("a", "1"))).json
        await api.put("a", value="2")
        answer = await api.ask("PUT", f"{api.maps}/a", stale)
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
        del stale["metadata"]["resourceVersion"]
        assert (await api.ask("PUT", f"{api.maps}/a", stale)).status == 200

    async def test_custom_resource_needs_a_version_to_be_replaced(self, api: Api) -> None:
        body = inference_pool(api.namespace, "pool", {"app": "x"}, [8000])
        pools = f"/apis/inference.networking.k8s.io/v1/namespaces/{api.namespace}/inferencepools"
        created = await api.ask("POST", pools, body)
        answer = await api.ask("PUT", f"{pools}/pool", body)
        assert (answer.status, answer.json["reason"]) == (422, "Invalid")
        assert (await api.ask("PUT", f"{pools}/pool", created.json)).status == 200
        # Custom resources do not support strategic merge patches.
        answer = await api.ask("PATCH", f"{pools}/pool", {}, content_type=STRATEGIC_MERGE)
        assert answer.status == 415
        assert (await api.ask("PATCH", f"{pools}/pool", {}, content_type=MERGE)).status == 200

    @pytest.mark.parametrize("content_type", [MERGE, STRATEGIC_MERGE])
    async def test_a_patch_is_merged(self, api: Api, content_type: str) -> None:
        await api.server.apply(config_map(api.namespace, "a", {"keep": "1", "drop": "2"}))
        patch = {"data": {"drop": None, "new": "3", "$patch": "merge"}}
        answer = await api.ask("PATCH", f"{api.maps}/a", patch, content_type=content_type)
        assert (answer.status, answer.json["data"]) == (200, {"keep": "1", "new": "3"})

    async def test_a_stale_patch_is_a_conflict(self, api: Api) -> None:
        await api.put("a")
        patch = {"metadata": {"resourceVersion": "1"}}
        answer = await api.ask("PATCH", f"{api.maps}/a", patch, content_type=MERGE)
        assert answer.status == 409

    async def test_bad_addresses_are_refused(self, api: Api) -> None:
        body = endpoint_slice("s", api.namespace, "x", [("10.0.0.300", "p", {})])
        answer = await api.ask("POST", api.slices, body)
        assert (answer.status, answer.json["reason"]) == (422, "Invalid")

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "reason"),
        [
            ("GET", "/a", None, 404, "NotFound"),
            ("PUT", "/a", {"metadata": {"name": "a"}}, 404, "NotFound"),
            ("DELETE", "/a", None, 404, "NotFound"),
            ("GET", "/a/b/c", None, 404, "NotFound"),
            ("GET", "x", None, 404, "NotFound"),
            ("DELETE", "", None, 405, "MethodNotAllowed"),
            ("POST", "/a", {}, 405, "MethodNotAllowed"),
            ("POST", "", b"{", 400, "BadRequest"),
            ("POST", "", [], 400, "BadRequest"),
            ("POST", "", {"kind": "Pod", "metadata": {"name": "a"}}, 400, "BadRequest"),
            ("POST", "", {"metadata": {"namespace": "elsewhere"}}, 400, "BadRequest"),
            ("PUT", "/a", {"metadata": {"name": "b"}}, 400, "BadRequest"),
            ("POST", "", {"metadata": {}}, 422, "Invalid"),
        ],
    )
    async def test_errors_are_status_objects(
        self, api: Api, method: str, path: str, body: object, status: int, reason: str
    ) -> None:
        answer = await api.ask(method, api.maps + path, body)
        assert (answer.status, answer.json["reason"]) == (status, reason)
        assert (answer.json["kind"], answer.json["status"]) == ("Status", "Failure")
        assert answer.json["code"] == status

    async def test_other_formats_are_refused(self, api: Api) -> None:
        answer = await api.ask("PATCH", f"{api.maps}/a", [], "application/json-patch+json")
        assert answer.status == 415
        answer = await api.ask("POST", api.maps, b"k8s\0", "application/vnd.kubernetes.protobuf")
        assert answer.status == 415


class TestLists:
    async def test_only_custom_items_have_a_kind(self, api: Api) -> None:
        await api.put("a")
        await api.server.apply(inference_pool(api.namespace, "pool", {}, [8000]))
        listed = await api.get(api.maps)
        assert (listed.json["kind"], listed.json["apiVersion"]) == ("ConfigMapList", "v1")
        assert not {"kind", "apiVersion"} & set(listed.json["items"][0])
        group = "/apis/inference.networking.k8s.io/v1"
        pools = await api.get(f"{group}/namespaces/{api.namespace}/inferencepools")
        assert pools.json["items"][0]["kind"] == "InferencePool"

    async def test_cover_one_namespace_or_all(self, api: Api) -> None:
        await api.put("a")
        await api.server.apply(config_map(f"{api.namespace}-x", "b", {}))
        assert (await api.get(api.maps)).names == ["a"]
        assert {"a", "b"} <= set((await api.get("/api/v1/configmaps")).names)

    async def test_selectors(self, api: Api) -> None:
        await api.put("a", app="x")
        await api.put("b", app="y")
        assert (await api.get(api.maps, labelSelector="app in (x,z)")).names == ["a"]
        assert (await api.get(api.maps, fieldSelector="metadata.name=b")).names == ["b"]
        for query in ({"labelSelector": "a b"}, {"fieldSelector": "spec.x=1"}):
            answer = await api.get(api.maps, **query)
            assert (answer.status, answer.json["reason"]) == (400, "BadRequest")

    async def test_pages_show_one_version(self, api: Api) -> None:
        await api.put("a", "b", "c")
        first = await api.get(api.maps, limit="2")
        assert first.names == ["a", "b"]
        assert first.json["metadata"]["remainingItemCount"] == 1
        await api.put("d")
        token = first.json["metadata"]["continue"]
        second = await api.get(api.maps, limit="2", **{"continue": token})
        assert (second.names, second.version) == (["c"], first.version)
        assert "continue" not in second.json["metadata"]

    async def test_remaining_count_is_omitted_with_selectors(self, api: Api) -> None:
        await api.put("a", "b", app="x")
        metadata = (await api.get(api.maps, limit="1", labelSelector="app")).json["metadata"]
        assert "continue" in metadata
        assert "remainingItemCount" not in metadata

    async def test_expired_continue_token_is_410(self, api: Api) -> None:
        await api.put("a", "b")
        token = (await api.get(api.maps, limit="1")).json["metadata"]["continue"]
        await api.put("c")
        await api.server.compact()
        answer = await api.get(api.maps, **{"continue": token})
        assert (answer.status, answer.json["reason"]) == (410, "Expired")

    async def test_versions(self, api: Api) -> None:
        await api.put("a")
        for version in ("0", "", "1", await api.version()):
            assert (await api.get(api.maps, resourceVersion=version)).names == ["a"]
        assert (await api.get(api.maps, resourceVersion="x")).status == 400
        answer = await api.get(api.maps, resourceVersion="1000000000")
        assert (answer.status, answer.json["reason"]) == (504, "Timeout")
        assert "Too large resource version" in answer.json["message"]

    async def test_text_is_not_escaped(self, api: Api) -> None:
        await api.put("a", value="grüße 👋")
        async with api.session.get(f"{api.server.url}{api.maps}/a") as response:
            assert "grüße 👋".encode() in await response.read()
