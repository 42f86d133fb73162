"""The sidecar's permissions are exactly those that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.manifests.builds import Build, Object, built

Right = tuple[str, str, str, str]
"""API group, resource, object name or *, and verb."""

READ = ("list", "watch")


def rights(*things: tuple[str, str, str], verbs: tuple[str, ...] = READ) -> set[Right]:
    """Return the permissions for the same verbs on several resources."""
    return {(*thing, verb) for thing in things for verb in verbs}


THE_DOCUMENT = rights(("", "configmaps", "extproc-models"))
EVENTS = rights(("", "events", "*"), verbs=("create",))
SLICES = rights(("discovery.k8s.io", "endpointslices", "*"))
POOL = rights(
    ("inference.networking.k8s.io", "inferencepools", "*"),
    ("inference.networking.x-k8s.io", "inferenceobjectives", "*"),
    ("", "pods", "*"),
)


def granted(role: Object) -> Iterator[Right]:
    """Yield the permissions of a Role."""
    for rule in role["rules"]:
        assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames", ["*"]):
                    for verb in rule["verbs"]:
                        yield group, resource, name, verb


def permissions_of_the_account(build: Build) -> dict[str, set[Right]]:
    """Return the permissions of the account "extproc" by namespace."""
    found: dict[str, set[Right]] = {}
    for binding in build.of("RoleBinding"):
        assert binding["roleRef"]["kind"] == "Role"
        subjects = [(s["kind"], s["name"], s["namespace"]) for s in binding["subjects"]]
        expected = "edge" if build.path.startswith("existing-envoy") else "inference"
        assert subjects == [("ServiceAccount", "extproc", expected)]
        namespace = binding["metadata"]["namespace"]
        role = next(
            role
            for role in build.of("Role")
            if role["metadata"]["name"] == binding["roleRef"]["name"]
            and role["metadata"]["namespace"] == namespace
        )
        found.setdefault(namespace, set()).update(granted(role))
    return found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("base", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
        ("standalone", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
        ("existing-envoy", {"edge": THE_DOCUMENT | EVENTS | SLICES}),
        ("overlays/envoy-gateway", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
        ("overlays/istio", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
        ("overlays/inference-pool", {"inference": THE_DOCUMENT | EVENTS | POOL}),
        ("overlays/inference-pool-istio", {"inference": THE_DOCUMENT | EVENTS | POOL}),
        ("overlays/further-namespace", {"models": SLICES}),
        ("overlays/model-server", {}),
        ("overlays/benchmark", {}),
        ("overlays/monitoring", {}),
        ("overlays/model-server-autoscaling", {}),
        ("overlays/autoscaling", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
        ("overlays/shared-state", {"inference": THE_DOCUMENT | EVENTS | SLICES}),
    ],
)
def test_account_has_exactly_the_needed_permissions(
    path: str, expected: dict[str, set[Right]]
) -> None:
    assert permissions_of_the_account(built(path)) == expected


def test_permissions_stay_in_a_namespace_and_every_role_is_bound(build: Build) -> None:
    assert build.of("ClusterRole", "ClusterRoleBinding") == []
    bound = {binding["roleRef"]["name"] for binding in build.of("RoleBinding")}
    assert {role["metadata"]["name"] for role in build.of("Role")} == bound
