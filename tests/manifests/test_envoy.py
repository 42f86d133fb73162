"""Real Envoy accepts every configuration in the manifests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.envoy import envoy_configuration, envoy_configurations
from extproc.lab.stack.envoy import envoy_binary
from tests.manifests.builds import MANIFESTS, Object, built, named
from tests.manifests.gateway import envoy_of_base

MANAGER = "envoy.filters.network.http_connection_manager"
MANAGER_TYPE = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
    "HttpConnectionManager"
)
ROUTER: Object = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}
HTTP2: Object = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


def assert_valid(config: Object, directory: Path) -> None:
    """Assert that Envoy validates a configuration without warnings."""
    path = directory / "envoy.json"
    path.write_text(json.dumps(config))
    command = [envoy_binary(), "--mode", "validate", "-l", "warning", "-c", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "deprecated" not in result.stderr.lower(), result.stderr


def manager_of(config: Object, listener: str = "llm") -> Object:
    """Return the HTTP connection manager of a listener."""
    found = named(config["static_resources"]["listeners"], listener)
    manager: Object = found["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def snippet() -> Object:
    path = MANIFESTS / "components" / "existing-envoy" / "envoy-snippet.yaml"
    pieces: Object = yaml.safe_load(path.read_text())
    return pieces


def test_envoy_accepts_the_bundled_gateways_configuration(tmp_path: Path) -> None:
    assert_valid(envoy_of_base(), tmp_path)


def test_bundled_gateway_has_the_recommended_configuration() -> None:
    ours = envoy_of_base()
    recommended = yaml.safe_load(envoy_configuration().read_text())
    assert manager_of(ours) == manager_of(recommended)
    theirs = named(recommended["static_resources"]["listeners"], "llm")
    assert named(ours["static_resources"]["listeners"], "llm") == theirs
    clusters = ours["static_resources"]["clusters"]
    places = ("type", "dns_lookup_family", "load_assignment")
    for cluster in recommended["static_resources"]["clusters"]:
        mine = named(clusters, cluster["name"])
        for key in set(cluster) | set(mine) - set(places):
            assert key in places or mine[key] == cluster[key], (cluster["name"], key)
    monitors = {m["name"]: m for m in ours["overload_manager"]["resource_monitors"]}
    for monitor in recommended["overload_manager"]["resource_monitors"]:
        assert monitors[monitor["name"]] == monitor


@pytest.mark.parametrize("path", [*envoy_configurations(), None], ids=str)
def test_connect_timeout_outlasts_a_burst_and_a_lost_syn(path: Path | None) -> None:
    """With ten thousand requests at once, Envoy handled new connections after 0.25 to 1 s."""
    config = yaml.safe_load(path.read_text()) if path else envoy_of_base()
    for cluster in config["static_resources"]["clusters"]:
        assert float(cluster["connect_timeout"].removesuffix("s")) >= 2, cluster["name"]


def test_heap_limit_is_below_the_containers_memory_limit() -> None:
    template = built("base").one("Deployment")["spec"]["template"]
    limit = named(template["spec"]["containers"], "envoy")["resources"]["limits"]["memory"]
    assert limit == "2Gi"
    monitors = envoy_of_base()["overload_manager"]["resource_monitors"]
    heap = named(monitors, "envoy.resource_monitors.fixed_heap")["typed_config"]
    assert 0.85 * 2**31 < heap["max_heap_size_bytes"] < 0.95 * 2**31


class TestSnippetForAnExistingEnvoy:
    def test_equals_the_bundled_gateway(self) -> None:
        pieces, ours = snippet(), envoy_of_base()
        manager = manager_of(ours)
        key = "early_header_mutation_extensions"
        assert pieces[key] == manager[key]
        assert [*pieces["http_filters"], ROUTER] == manager["http_filters"]
        assert pieces["routes"] == manager["route_config"]["virtual_hosts"][0]["routes"]
        logged = manager["access_log"][0]["typed_config"]["log_format"]["json_format"]
        assert pieces["log_fields"].items() <= logged.items()
        for cluster in pieces["clusters"]:
            assert cluster == named(ours["static_resources"]["clusters"], cluster["name"])

    def test_envoy_accepts_it(self, tmp_path: Path) -> None:
        pieces = snippet()
        manager = {
            "early_header_mutation_extensions": pieces["early_header_mutation_extensions"],
            "http_filters": [*pieces["http_filters"], ROUTER],
        }
        config = minimal(manager, pieces["routes"], pieces["clusters"])
        assert_valid(config, tmp_path)


def minimal(manager: Object, routes: list[Object], clusters: list[Object]) -> Object:
    """Return a minimal Envoy configuration with a listener and these pieces."""
    whole = {
        "@type": MANAGER_TYPE,
        "stat_prefix": "minimal",
        **manager,
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        },
    }
    listener = {
        "name": "minimal",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": MANAGER, "typed_config": whole}]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def merged(whole: Any, part: Any) -> Any:
    """Merge two values as Istio's MERGE does: merge messages, append lists."""
    if isinstance(whole, dict) and isinstance(part, dict):
        both = {key: merged(whole[key], part[key]) for key in whole.keys() & part.keys()}
        return {**whole, **part, **both}
    if isinstance(whole, list) and isinstance(part, list):
        return [*whole, *part]
    return part


def patched_by_istio(patches: list[Object], weighted: Object | None = None) -> Object:
    """Return a configuration as Istio generates it for a gateway, with our patches applied.

    `weighted` is the locality setting that Istio adds to clusters by default.
    """
    by_place = {patch["applyTo"]: patch["patch"] for patch in patches}
    assert len(by_place) == len(patches)
    target = "outbound|8000||vllm-llama.inference.svc.cluster.local"
    models = {
        "name": target,
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {} if weighted is None else {"locality_weighted_lb_config": weighted},
        "load_assignment": {"cluster_name": target},
    }
    processor = by_place["HTTP_FILTER"]["value"]
    picker = processor["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    sidecar = {
        "name": picker,
        "type": "STATIC",
        "load_assignment": {"cluster_name": picker},
        "typed_extension_protocol_options": HTTP2,
    }
    route = merged(
        {
            "match": {"prefix": "/"},
            "route": {"cluster": target, "retry_policy": {"retry_on": "connect-failure"}},
        },
        by_place["HTTP_ROUTE"]["value"],
    )
    assert by_place["HTTP_FILTER"]["operation"] == "INSERT_BEFORE"
    manager = {"stream_idle_timeout": "0s", "http_filters": [processor, ROUTER]}
    for place in ("LISTENER", "NETWORK_FILTER", "HTTP_ROUTE", "CLUSTER"):
        assert by_place[place]["operation"] == "MERGE"
    config = minimal(manager, [route], [merged(models, by_place["CLUSTER"]["value"]), sidecar])
    (listener,) = config["static_resources"]["listeners"]
    network_filter = listener["filter_chains"][0]["filters"][0]
    listener["filter_chains"][0]["filters"][0] = merged(
        network_filter, by_place["NETWORK_FILTER"]["value"]
    )
    config["static_resources"]["listeners"] = [merged(listener, by_place["LISTENER"]["value"])]
    return config


class TestPatchesForIstio:
    patches: list[Object] = built("overlays/istio").one("EnvoyFilter")["spec"]["configPatches"]

    def test_envoy_accepts_them(self, tmp_path: Path) -> None:
        assert_valid(patched_by_istio(self.patches), tmp_path)

    def test_need_the_rule_that_removes_the_locality_setting(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError, match="cannot be combined"):
            assert_valid(patched_by_istio(self.patches, weighted={}), tmp_path)
        patch = next(patch for patch in self.patches if patch["applyTo"] == "CLUSTER")
        rule = built("overlays/istio").one("DestinationRule")["spec"]
        assert rule["host"] == patch["match"]["cluster"]["service"]
        balancer = rule["trafficPolicy"]["loadBalancer"]
        assert balancer["localityLbSetting"] == {"enabled": False}

    def test_apply_to_gateways_only(self) -> None:
        assert {patch["match"]["context"] for patch in self.patches} == {"GATEWAY"}

    def test_equal_the_override_host_variant(self) -> None:
        variant = yaml.safe_load(envoy_configuration("fallback-override-host.yaml").read_text())
        values = {patch["applyTo"]: patch["patch"]["value"] for patch in self.patches}
        cluster = named(variant["static_resources"]["clusters"], "replicas")
        policy = "load_balancing_policy"
        assert values["CLUSTER"] == {policy: cluster[policy]}
        filters = manager_of(variant)["http_filters"]
        theirs = named(filters, "envoy.filters.http.ext_proc")["typed_config"]
        ours = values["HTTP_FILTER"]["typed_config"]
        for key in ("response_attributes", "route_cache_action", "failure_mode_allow"):
            assert ours[key] == theirs[key]
        assert ours["metadata_options"] == theirs["metadata_options"]
        # Istio's routes have retries, so Envoy must not send partial bodies.
        modes = {**theirs["processing_mode"], "request_body_mode": "BUFFERED"}
        # In this mode the end of a body needs no trailers.
        del modes["request_trailer_mode"]
        assert ours["processing_mode"].items() >= modes.items()


@pytest.mark.parametrize(
    "header",
    ["x-target-endpoint", "x-target-endpoint-fallback", "x-gateway-destination-endpoint"],
)
def test_routing_headers_from_clients_are_removed_everywhere(header: str) -> None:
    policy = built("overlays/envoy-gateway").one("ClientTrafficPolicy")["spec"]
    assert header in policy["headers"]["earlyRequestHeaders"]["remove"]
    for mutations in (
        manager_of(envoy_of_base())["early_header_mutation_extensions"],
        snippet()["early_header_mutation_extensions"],
        next(
            patch["patch"]["value"]["typed_config"]["early_header_mutation_extensions"]
            for patch in TestPatchesForIstio.patches
            if patch["applyTo"] == "NETWORK_FILTER"
        ),
    ):
        assert {"remove": header} in mutations[0]["typed_config"]["mutations"]
