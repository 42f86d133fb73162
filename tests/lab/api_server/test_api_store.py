"""The stand-in API server's store: versions, lists, watches, selectors and roles."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.api_server import store as api_store
from extproc.lab.api_server.builders import endpoint_slice
from extproc.lab.api_server.errors import ApiError
from extproc.lab.api_server.objects import Scope, Stored
from extproc.lab.api_server.rbac import Roles
from extproc.lab.api_server.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NAMESPACES,
    PODS,
    target_of,
)
from extproc.lab.api_server.selectors import field_selector, label_selector, matches
from extproc.lab.api_server.store import Change, Cursor, Store

Json = dict[str, Any]

EVERYWHERE = Scope(CONFIG_MAPS)


def config_map(name: str, namespace: str = "ns", data: str = "", **labels: str) -> Json:
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {**CONFIG_MAPS.type, "metadata": metadata, "data": {"key": data}}


def put(store: Store, name: str, data: str = "", namespace: str = "ns", **labels: str) -> Stored:
    return store.apply(CONFIG_MAPS, config_map(name, namespace, data, **labels))


def delete(store: Store, name: str) -> Stored:
    return store.delete(CONFIG_MAPS, "ns", name)


def names(stored: list[Stored]) -> list[str]:
    return [one.body["metadata"]["name"] for one in stored]


def version_of(stored: Stored) -> int:
    return int(stored.body["metadata"]["resourceVersion"])


def seen(cursor: Cursor) -> list[tuple[str, str]]:
    return [(change.type, change.stored.body["metadata"]["name"]) for change in cursor.changes()]


@pytest.fixture
def store() -> Store:
    """A store with the namespace of the tests, so that a write is one event."""
    store = Store()
    store.create(NAMESPACES, {"metadata": {"name": "ns"}})
    return store


class TestWrites:
    def test_server_sets_the_metadata_of_a_new_object(self, store: Store) -> None:
        metadata = put(store, "a").body["metadata"]
        assert re.fullmatch(r"[0-9a-f-]{36}", metadata["uid"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
        assert metadata["resourceVersion"] == str(store.version)

    def test_versions_increase_by_one_over_all_resources(self, store: Store) -> None:
        first = version_of(put(store, "a"))
        pod = store.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
        assert [version_of(pod), version_of(put(store, "b"))] == [first + 1, first + 2]

    def test_a_name_is_generated(self, store: Store) -> None:
        body = {"metadata": {"generateName": "slice-", "namespace": "ns"}}
        found = {store.create(CONFIG_MAPS, body).body["metadata"]["name"] for _ in range(20)}
        assert len(found) == 20
        assert all(re.fullmatch(r"slice-[a-z0-9]{5}", name) for name in found)

    def test_a_replacement_keeps_identity_and_creation(self, store: Store) -> None:
        before, after = put(store, "a", "1"), put(store, "a", "2")
        for field in ("uid", "creationTimestamp"):
            assert after.body["metadata"][field] == before.body["metadata"][field]
        assert version_of(after) == version_of(before) + 1

    def test_equal_replacement_is_no_event(self, store: Store) -> None:
        before = put(store, "a", "1")
        cursor = store.watch(EVERYWHERE, store.version)
        assert put(store, "a", "1") is before
        assert seen(cursor) == []

    def test_stored_states_are_immutable(self, store: Store) -> None:
        before = put(store, "a", "1")
        put(store, "a", "2")
        assert before.body["data"] == {"key": "1"}

    def test_a_stale_version_is_a_conflict(self, store: Store) -> None:
        stale = put(store, "a", "1").body
        put(store, "a", "2")
        with pytest.raises(ApiError, match="the object has been modified") as error:
            store.replace(CONFIG_MAPS, {**stale, "data": {}})
        assert (error.value.code, error.value.reason) == (409, "Conflict")

    def test_a_second_creation_is_refused(self, store: Store) -> None:
        put(store, "a")
        with pytest.raises(ApiError, match='configmaps "a" already exists') as error:
            store.create(CONFIG_MAPS, config_map("a"))
        assert (error.value.code, error.value.reason) == (409, "AlreadyExists")

    def test_a_creation_with_a_version_is_refused(self, store: Store) -> None:
        body = {"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "7"}}
        with pytest.raises(ApiError, match="should not be set"):
            store.create(CONFIG_MAPS, body)

    def test_unknown_object_is_not_found(self, store: Store) -> None:
        for ask in (store.get, store.delete):
            with pytest.raises(ApiError, match='configmaps "a" not found') as error:
                ask(CONFIG_MAPS, "ns", "a")
            assert error.value.document()["details"] == {
                "name": "a",
                "group": "",
                "kind": "configmaps",
            }

    def test_a_deletion_has_a_version_and_shows_the_last_state(self, store: Store) -> None:
        before = put(store, "a", "1")
        gone = delete(store, "a")
        assert gone.body["data"] == {"key": "1"}
        assert version_of(gone) == version_of(before) + 1 == store.version

    def test_first_object_creates_its_namespace(self, store: Store) -> None:
        put(store, "a", namespace="other")
        put(store, "b", namespace="other")
        assert names(store.list(Scope(NAMESPACES))) == ["ns", "other"]


class TestValidation:
    def refused(self, store: Store, body: Json) -> ApiError:
        with pytest.raises(ApiError) as error:
            store.create(ENDPOINT_SLICES, body)
        assert (error.value.code, error.value.reason) == (422, "Invalid")
        return error.value

    @pytest.mark.parametrize(
        ("address_type", "address"),
        [
            ("IPv4", "10.0.0.256"),
            ("IPv4", "pod.example"),
            ("IPv4", "::1"),
            ("IPv4", "10.0.0.1:80"),
            ("IPv4", ""),
            ("IPv6", "10.0.0.1"),
            ("IPv6", "fe80::1%eth0"),
            ("FQDN", ""),
        ],
    )
    def test_an_address_must_be_of_its_type(
        self, store: Store, address_type: str, address: str
    ) -> None:
        body = endpoint_slice("s", "ns", "x", [(address, "p", {})], address_type=address_type)
        error = self.refused(store, body)
        assert 'EndpointSlice.discovery.k8s.io "x" is invalid' in error.message
        assert f"must be a valid {address_type} address" in error.message

    @pytest.mark.parametrize(
        ("address_type", "address"),
        [("IPv4", "127.0.0.1"), ("IPv6", "fd00::1"), ("FQDN", "pod.example")],
    )
    def test_valid_addresses_are_accepted(
        self, store: Store, address_type: str, address: str
    ) -> None:
        body = endpoint_slice("s", "ns", "x", [(address, "p", {})], address_type=address_type)
        assert store.create(ENDPOINT_SLICES, body)

    def test_an_endpoint_has_an_address(self, store: Store) -> None:
        body = endpoint_slice("s", "ns", "x", [])
        error = self.refused(store, {**body, "endpoints": [{"addresses": []}]})
        assert "at least 1 address" in error.message

    def test_a_slice_has_a_known_type_and_at_most_a_thousand_endpoints(self, store: Store) -> None:
        many = [(str(ipaddress.IPv4Address(i)), "p", {"ready": True}) for i in range(1001)]
        body = endpoint_slice("s", "ns", "x", many, address_type="IPX")
        error = self.refused(store, body)
        assert "addressType: Unsupported value" in error.message
        assert "endpoints: Too many: 1001" in error.message

    def test_a_name_is_required_and_a_refused_replacement_changes_nothing(
        self, store: Store
    ) -> None:
        self.refused(store, {**endpoint_slice("s", "ns", "", [])})
        store.apply(ENDPOINT_SLICES, endpoint_slice("s", "ns", "x", []))
        version = store.version
        with pytest.raises(ApiError):
            store.apply(ENDPOINT_SLICES, endpoint_slice("s", "ns", "x", [("bad", "p", {})]))
        assert store.version == version


class TestLists:
    def test_order_is_by_namespace_and_name(self, store: Store) -> None:
        for namespace, name in (("ns", "b"), ("b", "x"), ("ns", "a")):
            put(store, name, namespace=namespace)
        assert names(store.list(EVERYWHERE)) == ["x", "a", "b"]
        assert names(store.list(Scope(CONFIG_MAPS, "ns"))) == ["a", "b"]

    def test_pages_show_the_version_of_the_first_one(self, store: Store) -> None:
        for name in "abcde":
            put(store, name, "old")
        first = store.page(EVERYWHERE, limit=2)
        delete(store, "a")
        delete(store, "c")
        put(store, "d", "new")
        put(store, "bb")
        second = store.page(EVERYWHERE, limit=2, token=first.token)
        third = store.page(EVERYWHERE, limit=2, token=second.token)
        assert [names(page.items) for page in (first, second, third)] == [
            ["a", "b"],
            ["c", "d"],
            ["e"],
        ]
        assert second.items[1].body["data"] == {"key": "old"}
        assert first.version == second.version == third.version < store.version
        assert [page.remaining for page in (first, second, third)] == [3, 1, 0]
        assert third.token == ""

    def test_token_expires_with_a_compaction(self, store: Store) -> None:
        for name in "abc":
            put(store, name)
        token = store.page(EVERYWHERE, limit=1).token
        store.compact()
        assert names(store.page(EVERYWHERE, limit=1, token=token).items) == ["b"]
        put(store, "d")
        store.compact()
        with pytest.raises(ApiError, match="continue parameter is too old") as error:
            store.page(EVERYWHERE, limit=1, token=token)
        assert (error.value.code, error.value.reason) == (410, "Expired")

    @pytest.mark.parametrize("token", ["?", "e30=", "W10=", "bm8="])
    def test_invalid_token_is_refused(self, store: Store, token: str) -> None:
        with pytest.raises(ApiError, match="continue key is not valid"):
            store.page(EVERYWHERE, token=token)

    @given(
        writes=st.lists(st.tuples(st.sampled_from("abcdefg"), st.booleans()), max_size=30),
        split=st.integers(0, 30),
    )
    def test_pages_do_not_depend_on_later_changes(
        self, writes: list[tuple[str, bool]], split: int
    ) -> None:
        store = Store()

        def write(pairs: list[tuple[str, bool]]) -> None:
            for name, present in pairs:
                if present:
                    put(store, name, str(store.version))
                elif name in names(store.list(EVERYWHERE)):
                    delete(store, name)

        write(writes[:split])
        whole = store.list(EVERYWHERE)
        page = store.page(EVERYWHERE, limit=1)
        write(writes[split:])
        listed = page.items
        while page.token:
            page = store.page(EVERYWHERE, limit=2, token=page.token)
            listed = listed + page.items
        assert listed == whole


class TestWatches:
    def test_begin_after_a_version(self, store: Store) -> None:
        put(store, "a")
        version = store.version
        put(store, "b")
        put(store, "b", "new")
        delete(store, "a")
        expected = [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
        assert seen(store.watch(EVERYWHERE, version)) == expected

    def test_return_each_change_once(self, store: Store) -> None:
        cursor = store.watch(EVERYWHERE, store.version)
        assert seen(cursor) == []
        put(store, "a")
        assert seen(cursor) == [("ADDED", "a")]
        assert seen(cursor) == []

    def test_deletion_has_the_last_state_with_a_new_version(self, store: Store) -> None:
        put(store, "a", "last")
        cursor = store.watch(EVERYWHERE, store.version)
        delete(store, "a")
        [change] = cursor.changes()
        assert change.stored.body["data"] == {"key": "last"}
        assert version_of(change.stored) == store.version

    def test_object_that_stops_matching_is_deleted(self, store: Store) -> None:
        labels = label_selector("app=x")
        put(store, "a", app="x")
        cursor = store.watch(Scope(CONFIG_MAPS, labels=labels), store.version)
        put(store, "a", app="y")
        put(store, "a", "more", app="y")
        put(store, "a", app="x")
        put(store, "a", "more", app="x")
        gone, *others = cursor.changes()
        assert gone == Change("DELETED", gone.stored)
        # The last matching state, with the version of the change.
        assert gone.stored.body["metadata"]["labels"] == {"app": "x"}
        assert version_of(gone.stored) == store.version - 3
        assert [change.type for change in others] == ["ADDED", "MODIFIED"]

    def test_skip_other_resources_namespaces_and_names(self, store: Store) -> None:
        fields = field_selector("metadata.name=a")
        cursor = store.watch(Scope(CONFIG_MAPS, "ns", fields=fields), store.version)
        put(store, "a", namespace="other")
        put(store, "b")
        store.create(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
        put(store, "a")
        assert seen(cursor) == [("ADDED", "a")]

    def test_versions_before_a_compaction_are_expired(self, store: Store) -> None:
        put(store, "a")
        old = store.version
        put(store, "b")
        store.compact()
        with pytest.raises(ApiError, match="too old resource version") as error:
            store.watch(EVERYWHERE, old)
        assert (error.value.code, error.value.reason) == (410, "Expired")
        assert seen(store.watch(EVERYWHERE, store.version)) == []

    def test_open_watch_survives_a_compaction(self, store: Store) -> None:
        cursor = store.watch(EVERYWHERE, store.version)
        put(store, "a")
        store.compact()
        put(store, "b")
        assert seen(cursor) == [("ADDED", "a"), ("ADDED", "b")]

    def test_watch_waits_for_a_future_version(self, store: Store) -> None:
        cursor = store.watch(EVERYWHERE, store.version + 2)
        for name in "abc":
            put(store, name)
        assert seen(cursor) == [("ADDED", "c")]

    def test_the_log_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api_store, "HISTORY", 10)
        first = store.version
        cursor = store.watch(EVERYWHERE, first)
        for i in range(25):
            put(store, "a", str(i))
        with pytest.raises(ApiError):
            store.watch(EVERYWHERE, first)
        assert len(store.watch(EVERYWHERE, store.version - 10).changes()) == 10
        assert len(cursor.changes()) == 25

    def test_callback_is_called_for_each_write(self) -> None:
        told: list[int] = []
        own: Store = Store(lambda: told.append(own.version))
        own.create(NAMESPACES, {"metadata": {"name": "a"}})
        own.delete(NAMESPACES, "", "a")
        assert told == [2, 3]


LABELS = {"app": "x", "tier": "front", "example.com/role": "a", "empty": ""}


class TestSelectors:
    @pytest.mark.parametrize(
        ("selector", "matching"),
        [
            ("", True),
            ("app=x", True),
            ("app==x", True),
            ("app = x", True),
            ("app=y", False),
            ("app!=y", True),
            ("app!=x", False),
            ("none!=x", True),
            ("none=x", False),
            ("none=", False),
            ("empty=", True),
            ("app", True),
            ("none", False),
            ("!none", True),
            ("!app", False),
            ("app in (x, y)", True),
            ("app in (y)", False),
            ("none in (x)", False),
            ("app notin (y,z)", True),
            ("app notin (x,y)", False),
            ("none notin (x)", True),
            ("example.com/role=a", True),
            ("app in (x,y),tier=front,!none", True),
            ("app=x,tier=back", False),
        ],
    )
    def test_labels(self, selector: str, matching: bool) -> None:
        assert matches(label_selector(selector), LABELS) is matching

    @pytest.mark.parametrize("selector", ["=x", "a=b=c", "a in x", "a>", "a,,b", "a b", "(", "!"])
    def test_a_bad_label_selector_is_refused(self, selector: str) -> None:
        with pytest.raises(ApiError, match="unable to parse"):
            label_selector(selector)

    def test_fields_are_names_and_namespaces(self) -> None:
        fields = {"metadata.name": "a", "metadata.namespace": "ns"}
        assert matches(field_selector("metadata.name=a,metadata.namespace==ns"), fields)
        assert not matches(field_selector("metadata.name!=a"), fields)
        with pytest.raises(ApiError, match="field label not supported"):
            field_selector("spec.x=1")


ROLES = Roles(
    [
        {
            "kind": "Role",
            "metadata": {"name": "r", "namespace": "ns"},
            "rules": [
                {
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                },
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "verbs": ["*"],
                    "resourceNames": ["models"],
                },
            ],
        }
    ]
)
SLICES = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
MAPS = "/api/v1/namespaces/ns/configmaps"


class TestRoles:
    @pytest.mark.parametrize(
        ("method", "path", "query", "allowed"),
        [
            ("GET", SLICES, {}, True),
            ("GET", SLICES, {"watch": "1"}, True),
            ("GET", SLICES + "/x", {}, False),
            ("POST", SLICES, {}, False),
            ("GET", SLICES.replace("/ns/", "/other/"), {}, False),
            ("GET", "/apis/discovery.k8s.io/v1/endpointslices", {}, False),
            ("GET", "/api/v1/namespaces/ns/pods", {}, False),
            ("GET", "/api/v1/namespaces/ns", {}, False),
            ("GET", MAPS + "/models", {}, True),
            ("PATCH", MAPS + "/models", {}, True),
            ("GET", MAPS + "/others", {}, False),
            ("GET", MAPS, {}, False),
            ("POST", MAPS, {}, False),
            ("GET", MAPS, {"fieldSelector": "metadata.name=models"}, True),
            ("GET", MAPS, {"fieldSelector": "metadata.name=models", "watch": "true"}, True),
            ("GET", MAPS, {"fieldSelector": "metadata.name=others"}, False),
            ("GET", MAPS, {"fieldSelector": "metadata.name!=models"}, False),
        ],
    )
    def test_only_what_a_rule_allows_is_allowed(
        self, method: str, path: str, query: dict[str, str], allowed: bool
    ) -> None:
        assert ROLES.allow(target_of(method, path, query)) is allowed

    @pytest.mark.parametrize("role", [{"kind": "ClusterRole"}, {"kind": "Role", "rules": []}])
    def test_roles_without_a_namespace_are_refused(self, role: Json) -> None:
        with pytest.raises(ApiError, match="Role objects"):
            Roles([role])
