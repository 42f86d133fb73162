"""The pods: security, probes and termination."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.builds import SHARING, Build, Object, built, containers, named

EXTPROC_BUILDS = ["base", "standalone", "overlays/inference-pool-istio", "existing-envoy"]
WITH_VALKEY = ["overlays/shared-state", *SHARING]
# https://kubernetes.io/docs/concepts/security/pod-security-standards, "restricted".
ALLOWED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "hostUsers")


def violations(spec: Object) -> list[str]:
    """Return a pod's violations of the Pod Security Standard "restricted"."""
    found = [field for field in HOST_FIELDS if spec.get(field)]
    for volume in spec.get("volumes", []):
        found += [f"volume {kind}" for kind in volume if kind not in {"name", *ALLOWED_VOLUMES}]
    pod = spec.get("securityContext", {})
    found += [field for field in ("sysctls", "seLinuxOptions", "windowsOptions") if field in pod]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext", {})
        effective = {**pod, **own}
        seccomp = effective.get("seccompProfile", {}).get("type")
        checks = {
            "hostPort": any("hostPort" in port for port in container.get("ports", [])),
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": effective.get("runAsNonRoot") is not True,
            "runAsUser 0": effective.get("runAsUser") == 0,
            "seccompProfile": seccomp not in ("RuntimeDefault", "Localhost"),
            "capabilities": own.get("capabilities", {}) != {"drop": ["ALL"]},
            "procMount": own.get("procMount", "Default") != "Default",
        }
        found += [f"{container['name']}: {check}" for check, broken in checks.items() if broken]
    return found


def test_pods_meet_the_restricted_security_standard(build: Build) -> None:
    for _, template in build.pods():
        assert violations(template["spec"]) == []


def test_security_check_finds_violations() -> None:
    open_pod: Object = {
        "hostNetwork": True,
        "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        "containers": [{"name": "c", "ports": [{"hostPort": 1}]}],
    }
    assert violations(open_pod) == [
        "hostNetwork",
        "volume hostPath",
        "c: hostPort",
        "c: allowPrivilegeEscalation",
        "c: runAsNonRoot",
        "c: seccompProfile",
        "c: capabilities",
    ]


@pytest.mark.parametrize("path", [*EXTPROC_BUILDS, *WITH_VALKEY])
def test_containers_have_a_read_only_image_and_no_cpu_limit(path: str) -> None:
    for _, template in built(path).pods():
        for container in containers(template):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            resources = container["resources"]
            assert set(resources["requests"]) == {"cpu", "memory"}
            assert set(resources["limits"]) == {"memory"}


@pytest.mark.parametrize("path", EXTPROC_BUILDS)
def test_only_the_sidecar_mounts_an_api_token(path: str) -> None:
    build = built(path)
    assert build.one("ServiceAccount")["automountServiceAccountToken"] is False
    for _, template in build.pods():
        assert template["spec"]["automountServiceAccountToken"] is False
        tokens = {
            volume["name"]
            for volume in template["spec"]["volumes"]
            if any(
                "serviceAccountToken" in s for s in volume.get("projected", {}).get("sources", [])
            )
        }
        assert len(tokens) == 1
        holders = {
            container["name"]: mount
            for container in containers(template)
            for mount in container["volumeMounts"]
            if mount["name"] in tokens
        }
        assert set(holders) == {"extproc"}
        # Only where Kubernetes clients expect it.
        assert holders["extproc"]["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_long_running_containers_have_all_probes(build: Build) -> None:
    for owner, template in build.pods():
        if owner["kind"] == "Deployment":
            for container in containers(template):
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    assert probe in container, f"{container['name']}: {probe}"


@pytest.mark.parametrize("path", EXTPROC_BUILDS)
def test_undiscovered_model_stops_a_rollout_but_no_running_pod(path: str) -> None:
    for _, template in built(path).pods():
        sidecar = named(containers(template), "extproc")
        paths = {
            probe: sidecar[probe]["httpGet"]["path"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe")
        }
        assert paths == {
            "startupProbe": "/readyz",
            "readinessProbe": "/readyz",
            "livenessProbe": "/healthz",
        }


def argument(container: Object, flag: str) -> str:
    """Return the value of a flag in the form --flag=value."""
    arguments: list[str] = container["args"]
    return next(arg.partition("=")[2] for arg in arguments if arg.startswith(f"{flag}="))


def environment(container: Object, name: str) -> str:
    """Return the value of an environment variable."""
    return str(named(container["env"], name)["value"])


def test_gateway_pod_ends_envoy_first_and_gives_both_enough_time() -> None:
    template: dict[str, Any] = built("base").one("Deployment")["spec"]["template"]
    spec = template["spec"]
    # A native sidecar starts before the other containers and stops after them.
    assert [container["name"] for container in spec["initContainers"]] == ["extproc"]
    sidecar, envoy = spec["initContainers"][0], named(spec["containers"], "envoy")
    assert sidecar["restartPolicy"] == "Always"
    assert "lifecycle" not in sidecar
    assert envoy["lifecycle"]["preStop"]["exec"]["command"] == ["bash", "/etc/envoy/drain.sh"]
    drain, grace = float(environment(envoy, "DRAIN_MAX")), float(argument(sidecar, "--grace"))
    assert 0 < float(environment(envoy, "DRAIN_MIN")) < drain
    assert drain + grace < spec["terminationGracePeriodSeconds"] <= drain + grace + 30


def test_standalone_sidecar_has_enough_time_to_drain() -> None:
    spec = built("standalone").one("Deployment")["spec"]["template"]["spec"]
    sidecar = named(spec["containers"], "extproc")
    needed = sidecar["lifecycle"]["preStop"]["sleep"]["seconds"] + float(
        argument(sidecar, "--grace")
    )
    assert needed < spec["terminationGracePeriodSeconds"] <= needed + 30


def test_model_server_has_enough_time_to_drain() -> None:
    spec = built("overlays/model-server").one("Deployment")["spec"]["template"]["spec"]
    vllm = named(spec["containers"], "vllm")
    needed = vllm["lifecycle"]["preStop"]["sleep"]["seconds"] + float(
        argument(vllm, "--shutdown-timeout")
    )
    assert needed < spec["terminationGracePeriodSeconds"] <= needed + 30


@pytest.mark.parametrize("path", ["base", "standalone"])
def test_rollout_keeps_capacity_and_replicas_spread_over_nodes(path: str) -> None:
    spec = built(path).one("Deployment")["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert {constraint["topologyKey"] for constraint in spread} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }
    for constraint in spread:
        assert constraint["labelSelector"] == spec["selector"]


def test_envoy_and_the_sidecar_share_user_and_socket() -> None:
    template = built("base").one("Deployment")["spec"]["template"]
    sidecar, envoy = (named(containers(template), name) for name in ("extproc", "envoy"))
    listen = argument(sidecar, "--listen").removeprefix("unix:")
    directory = listen.rpartition("/")[0]
    for container in (sidecar, envoy):
        assert "runAsUser" not in container["securityContext"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert mounts[directory] == "socket"
    socket = named(template["spec"]["volumes"], "socket")
    assert socket["emptyDir"]["medium"] == "Memory"


def without(container: Object, *keys: str) -> Object:
    """Return a container without the keys that may differ."""
    return {key: value for key, value in container.items() if key not in keys}


def test_component_for_an_existing_envoy_adds_the_same_container() -> None:
    ours, theirs = (
        named(
            built(path).one("Deployment")["spec"]["template"]["spec"]["initContainers"], "extproc"
        )
        for path in ("base", "existing-envoy")
    )
    different = ("securityContext", "volumeMounts")
    assert without(theirs, *different) == without(ours, *different)
    for mounts in (ours["volumeMounts"], theirs["volumeMounts"]):
        assert [mount["mountPath"] for mount in mounts] == [
            "/run/extproc",
            "/var/run/secrets/kubernetes.io/serviceaccount",
        ]


def test_standalone_sidecar_differs_only_in_necessary_settings() -> None:
    sidecar = named(
        built("base").one("Deployment")["spec"]["template"]["spec"]["initContainers"], "extproc"
    )
    alone = named(
        built("standalone").one("Deployment")["spec"]["template"]["spec"]["containers"], "extproc"
    )
    different = ("args", "lifecycle", "ports", "resources", "restartPolicy", "volumeMounts")
    assert without(alone, *different) == without(sidecar, *different)
