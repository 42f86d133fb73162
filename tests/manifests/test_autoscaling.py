"""Autoscalers, priorities and disruption budgets, of the sidecars and of the model servers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from extproc.adapters.configuration.document import parse
from tests.manifests.builds import (
    PICKER_SCALING,
    Object,
    adapter_rules,
    assembled,
    built,
    containers,
    labels_of,
    selects,
)

SCALED = {"overlays/autoscaling": "extproc-gateway", PICKER_SCALING: "extproc"}
MODEL_SERVER = "overlays/model-server-autoscaling"
scaled = pytest.mark.parametrize("path", SCALED)


def autoscaler(path: str) -> Any:
    """Return the specification of the only HorizontalPodAutoscaler."""
    return built(path).one("HorizontalPodAutoscaler", SCALED[path])["spec"]


def deployment(path: str) -> Object:
    """Return the Deployment of the sidecars."""
    return built(path).one("Deployment", SCALED[path])


class TestSidecars:
    @scaled
    def test_number_is_the_autoscalers_alone(self, path: str) -> None:
        assert "replicas" not in deployment(path)["spec"]
        target = autoscaler(path)["scaleTargetRef"]
        assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": SCALED[path]}

    @scaled
    def test_cpu_of_each_long_running_container_counts(self, path: str) -> None:
        metrics = [m for m in autoscaler(path)["metrics"] if m["type"] == "ContainerResource"]
        watched = [metric["containerResource"]["container"] for metric in metrics]
        running = containers(deployment(path)["spec"]["template"])
        assert sorted(watched) == sorted(container["name"] for container in running)
        for metric in metrics:
            assert metric["containerResource"]["name"] == "cpu"

    @scaled
    def test_sidecar_scales_before_its_only_core_is_busy(self, path: str) -> None:
        cpu = {
            metric["containerResource"]["container"]: metric["containerResource"]["target"]
            for metric in autoscaler(path)["metrics"]
            if metric["type"] == "ContainerResource"
        }
        assert 500 <= int(cpu["extproc"]["averageValue"].removesuffix("m")) <= 800

    def test_envoy_scales_before_its_threads_are_busy(self) -> None:
        (cpu,) = [
            metric["containerResource"]["target"]["averageValue"]
            for metric in autoscaler("overlays/autoscaling")["metrics"]
            if metric.get("containerResource", {}).get("container") == "envoy"
        ]
        envoy = deployment("overlays/autoscaling")["spec"]["template"]["spec"]["containers"][0]
        threads = int(envoy["args"][envoy["args"].index("--concurrency") + 1])
        assert 0.5 * threads <= int(cpu.removesuffix("m")) / 1000 <= 0.8 * threads

    @scaled
    def test_requests_per_second_come_from_the_adapters_rule(self, path: str) -> None:
        (pods,) = [m["pods"] for m in autoscaler(path)["metrics"] if m["type"] == "Pods"]
        assert pods["metric"]["name"] in [rule["name"]["as"] for rule in adapter_rules()]

    @scaled
    def test_a_node_may_be_drained_at_the_smallest_size(self, path: str) -> None:
        budget = built(path).one("PodDisruptionBudget", SCALED[path])["spec"]
        assert autoscaler(path)["minReplicas"] > budget["maxUnavailable"] > 0
        labels = labels_of(deployment(path)["spec"]["template"])
        assert selects(budget["selector"]["matchLabels"], labels)

    @scaled
    def test_pods_end_more_slowly_than_they_drain(self, path: str) -> None:
        pod = deployment(path)["spec"]["template"]["spec"]
        down = autoscaler(path)["behavior"]["scaleDown"]
        assert down["stabilizationWindowSeconds"] > pod["terminationGracePeriodSeconds"]
        assert [(p["type"], p["value"]) for p in down["policies"]] == [("Pods", 1)]


class TestPriority:
    @pytest.mark.parametrize("path", [*SCALED, "existing-envoy"])
    def test_pods_with_a_sidecar_have_the_class(self, path: str) -> None:
        parts = {
            "resources": ["tests/manifests/existing_envoy"],
            "components": ["manifests/components/priority"],
        }
        build = built(path) if path in SCALED else assembled({"namespace": "edge", **parts})
        name = build.sidecar_pod()["spec"]["priorityClassName"]
        assert build.one("PriorityClass")["metadata"]["name"] == name

    def test_class_is_between_ordinary_pods_and_those_of_kubernetes(self) -> None:
        value = built("overlays/autoscaling").one("PriorityClass")["value"]
        assert 0 < value < 1_000_000_000


class TestModelServers:
    def spec(self) -> Any:
        return built(MODEL_SERVER).one("ScaledObject")["spec"]

    def test_number_is_kedas_alone(self) -> None:
        target = built(MODEL_SERVER).one("Deployment", self.spec()["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"]

    def test_queries_select_the_pods_of_the_deployment(self) -> None:
        target = built(MODEL_SERVER).one("Deployment")["metadata"]
        for trigger in self.spec()["triggers"]:
            query = trigger["metadata"]["query"]
            assert f'namespace="{target["namespace"]}"' in query
            if trigger["name"] == "flow-control":
                continue  # its pods are those of the sidecars
            (pods,) = re.findall(r'pod=~"([^"]+)"', query)
            assert re.fullmatch(pods, f"{target['name']}-5d4c7b8f9-x2x7q")

    def test_queries_name_the_model_of_the_deployment(self) -> None:
        container = containers(built(MODEL_SERVER).one("Deployment")["spec"]["template"])[0]
        (served,) = [one for one in container["args"] if one.startswith("--served-model-name=")]
        document = parse(
            built("base").one("ConfigMap", "extproc-models")["data"]["models.yaml"].encode()
        )
        queries = " ".join(trigger["metadata"]["query"] for trigger in self.spec()["triggers"])
        (named,) = set(re.findall(r'model="([^"]+)"', queries))
        assert [named] == [served.partition("=")[2]] == [model.name for model in document.models]

    def test_queue_and_saturation_are_averages_of_the_replicas(self) -> None:
        triggers = {trigger["name"]: trigger for trigger in self.spec()["triggers"]}
        assert "vllm:num_requests_waiting" in triggers["queue"]["metadata"]["query"]
        assert "vllm:kv_cache_usage_perc" in triggers["saturation"]["metadata"]["query"]
        for trigger in triggers.values():
            assert trigger["metricType"] == "AverageValue"
            assert float(trigger["metadata"]["threshold"]) > 0

    def test_metrics_of_a_model_without_replicas_are_not_lost(self) -> None:
        """With an error, KEDA would start as many replicas as its fallback says."""
        for trigger in self.spec()["triggers"]:
            query = " ".join(trigger["metadata"]["query"].split())
            assert re.search(r" or (sum\(extproc_endpoints\{[^}]+\}\) == 0|vector\(0\))$", query)

    def test_lost_metrics_remove_no_replica(self) -> None:
        assert self.spec()["fallback"]["behavior"] == "currentReplicasIfHigher"
        for trigger in self.spec()["triggers"]:
            query, ignores = (
                trigger["metadata"]["query"],
                trigger["metadata"].get("ignoreNullValues"),
            )
            # Without flow control there is no queue, and the query itself says so.
            assert ignores == "false" or query.strip().endswith("or vector(0)")

    def test_budget_allows_a_drain_at_the_smallest_size(self) -> None:
        budget = built(MODEL_SERVER).one("PodDisruptionBudget")["spec"]
        assert self.spec()["minReplicaCount"] > budget["maxUnavailable"] > 0
