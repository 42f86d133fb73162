"""The values of the Helm chart: their effects, and the refusal of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifests.builds import Build, Object
from tests.manifests.helm import chart, refusal
from tests.manifests.validation import validate

SHARING = {"sharedState": {"enabled": True}}
MODEL = {"name": "m", "service": {"name": "s", "port": "http"}}

AUTOSCALER = "HorizontalPodAutoscaler"

EFFECTS: list[tuple[Object, str, str]] = [
    ({"image": {"repository": "r/e", "tag": "2"}}, "Deployment", "'image': 'r/e:2'"),
    (
        {"image": {"digest": "sha256:" + "0" * 64}},
        "Deployment",
        f"'image': 'extproc:0.1.0@sha256:{'0' * 64}'",
    ),
    ({"image": {"pullPolicy": "Always"}}, "Deployment", "'imagePullPolicy': 'Always'"),
    ({"imagePullSecrets": [{"name": "p"}]}, "Deployment", "'imagePullSecrets': [{'name': 'p'}]"),
    ({"models": [MODEL]}, "ConfigMap", "namespace: inference\\n    port: http"),
    ({"modelServer": {"name": "other"}}, "ConfigMap", "{address: other, port_value: 8000}"),
    ({"replicas": 5}, "Deployment", "'replicas': 5"),
    ({"autoscaling": {"enabled": True, "minReplicas": 3}}, AUTOSCALER, "'minReplicas': 3"),
    ({"autoscaling": {"enabled": True, "maxReplicas": 30}}, AUTOSCALER, "'maxReplicas': 30"),
    (
        {"autoscaling": {"enabled": True, "requestsPerSecond": 50}},
        AUTOSCALER,
        "'averageValue': '50'",
    ),
    (
        {"priority": {"enabled": True, "create": False, "className": "c"}},
        "Deployment",
        "'priorityClassName': 'c'",
    ),
    ({"resources": {"limits": {"memory": "2Gi"}}}, "Deployment", "{'limits': {'memory': '2Gi'}}"),
    ({"extraArgs": ["--log-level=debug"]}, "Deployment", "'--log-level=debug'"),
    ({"extraEnv": [{"name": "A", "value": "b"}]}, "Deployment", "{'name': 'A', 'value': 'b'}"),
    ({"podAnnotations": {"a": "b"}}, "Deployment", "'annotations': {'a': 'b'}"),
    ({"nodeSelector": {"a": "b"}}, "Deployment", "'nodeSelector': {'a': 'b'}"),
    ({"tolerations": [{"key": "a"}]}, "Deployment", "'tolerations': [{'key': 'a'}]"),
    ({"affinity": {"podAffinity": {}}}, "Deployment", "'affinity': {'podAffinity': {}}"),
    ({"envoy": {"image": {"tag": "v1.40.1"}}}, "Deployment", "envoyproxy/envoy:v1.40.1"),
    ({"envoy": {"config": "admin: {}"}}, "ConfigMap", "'envoy.yaml': 'admin: {}'"),
    ({"envoy": {"resources": {"limits": {"cpu": "9"}}}}, "Deployment", "{'cpu': '9'}"),
    ({"service": {"type": "LoadBalancer"}}, "Service", "'type': 'LoadBalancer'"),
    ({"service": {"annotations": {"a": "b"}}}, "Service", "'annotations': {'a': 'b'}"),
    ({"gateway": "istio", "gatewayClassName": "c"}, "Gateway", "'gatewayClassName': 'c'"),
    ({"gateway": "inference-pool", "gatewayName": "g"}, "HTTPRoute", "'name': 'g'"),
    (
        {"gateway": "standalone", "tls": {"enabled": True, "secretName": "s"}},
        "Deployment",
        "'secretName': 's'",
    ),
    ({"sharedState": {"enabled": True, "url": "redis://r"}}, "ConfigMap", "'redis://r'"),
    ({"sharedState": {"enabled": True, "secretName": "s"}}, "Deployment", "'secretName': 's'"),
    (
        {"sharedState": {"enabled": True, "settings": {"EXTPROC_SHARED_STATE_KEY": "k"}}},
        "ConfigMap",
        "'EXTPROC_SHARED_STATE_KEY': 'k'",
    ),
    (
        {"sharedState": {"enabled": True, "valkey": {"image": {"tag": "9.9.9"}}}},
        "Deployment",
        "valkey/valkey:9.9.9",
    ),
    ({"networkPolicy": {"apiServer": ["10.0.0.1/32"]}}, "NetworkPolicy", "10.0.0.1/32"),
    ({"networkPolicy": {"prometheusNamespace": "obs"}}, "NetworkPolicy", "'obs'"),
    ({"networkPolicy": {"egress": [{"ports": [{"port": 1}]}]}}, "NetworkPolicy", "{'port': 1}"),
    ({"monitoring": {"enabled": True, "labels": {"release": "p"}}}, "PodMonitor", "'release': 'p'"),
]


@pytest.mark.parametrize(("values", "kind", "text"), EFFECTS, ids=[str(e[0])[:40] for e in EFFECTS])
def test_each_value_has_its_effect_in_valid_objects(values: Object, kind: str, text: str) -> None:
    base = chart({key: value for key, value in values.items() if key == "gateway"})
    build = chart(values)
    assert text in str(build.of(kind))
    assert text not in str(base.of(kind))
    for thing in build.of(kind):
        validate(thing)


def test_network_policies_can_be_left_out() -> None:
    assert chart({"networkPolicy": {"enabled": False}, **SHARING}).of("NetworkPolicy") == []


def test_requests_per_second_can_be_left_out() -> None:
    build = chart({"autoscaling": {"enabled": True, "requestsPerSecond": 0}})
    assert {m["type"] for m in build.one(AUTOSCALER)["spec"]["metrics"]} == {"ContainerResource"}


def test_existing_priority_class_is_not_created() -> None:
    build = chart({"priority": {"enabled": True, "create": False}})
    assert build.of("PriorityClass") == []


def test_own_redis_needs_no_valkey() -> None:
    build = chart({"sharedState": {"enabled": True, "url": "rediss://r"}})
    assert "valkey" not in str(build.objects)


@pytest.mark.parametrize(
    "values",
    [
        {"envoy": {"config": "admin: {}"}},
        {"modelServer": {"name": "other"}},
        {"sharedState": {"enabled": True, "url": "redis://r"}},
    ],
    ids=str,
)
def test_changed_settings_replace_the_pods(values: Object) -> None:
    def mounted(build: Build) -> set[str]:
        pod: dict[str, Any] = build.sidecar_pod()["spec"]
        volumes = {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
        container = pod["initContainers"][0]
        return volumes | {one["configMapRef"]["name"] for one in container.get("envFrom", [])}

    build = chart(values)
    assert mounted(build) != mounted(chart({**values, "envoy": {"config": "other"}}))
    assert mounted(build) - mounted(chart(SHARING))
    assert all(build.has("ConfigMap", name) for name in mounted(build))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gateway": "nginx"}, "at '/gateway': value must be one of 'bundled', 'existing-envoy'"),
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
        ({"image": {"digest": "latest"}}, "at '/image/digest': 'latest' does not match pattern"),
        ({"models": [{"name": "m"}]}, "at '/models/0': missing property 'service'"),
        ({"models": [{"endpoints": []}]}, "at '/models/0': missing property 'name'"),
        ({"sharedState": {"url": "http://r"}}, "at '/sharedState/url': 'http://r' does not match"),
        ({"networkPolicy": {"apiServer": []}}, "at '/networkPolicy/apiServer': minItems: got 0"),
        ({"extraArgs": ["debug"]}, "at '/extraArgs/0': 'debug' does not match pattern '^--'"),
        (
            {"tls": {"enabled": True}},
            "tls.enabled is for gateway: standalone and inference-pool, not for bundled.",
        ),
        (
            {"gateway": "existing-envoy", "autoscaling": {"enabled": True}},
            "autoscaling.enabled is not for gateway: existing-envoy",
        ),
        (
            {"autoscaling": {"minReplicas": 5, "maxReplicas": 4}},
            "autoscaling.minReplicas is larger than autoscaling.maxReplicas.",
        ),
        (
            {"gateway": "inference-pool", "models": [MODEL]},
            "models: m needs inferencePool: with gateway: inference-pool",
        ),
        (
            {"models": [{"name": "m", "inferencePool": {"name": "p"}}]},
            "m has inferencePool:, for which gateway: bundled has no permission.",
        ),
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_their_place(values: Object, message: str) -> None:
    assert message in refusal(values)
