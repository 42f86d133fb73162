"""References from one object to another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.manifests.builds import (
    ROOT,
    SHARING,
    Build,
    Object,
    built,
    containers,
    labels_of,
    named,
    selects,
)
from tests.manifests.gateway import envoy_of_base

MODEL_SERVER = "overlays/model-server"
MODEL_SERVER_LABEL = "extproc-model-server"
WITH_SIDECAR = [
    "base",
    "standalone",
    "existing-envoy",
    "overlays/envoy-gateway",
    "overlays/istio",
    "overlays/inference-pool",
    "overlays/inference-pool-istio",
    "overlays/shared-state",
    "overlays/autoscaling",
    *SHARING,
]


def templates(*paths: str) -> list[Object]:
    """Return the pod templates of builds."""
    return [template for path in paths for _, template in built(path).pods()]


def ports(template: Object) -> dict[str | int, int]:
    """Return a pod's ports by name and by number."""
    declared = [port for c in containers(template) for port in c.get("ports", [])]
    found: dict[str | int, int] = {port["name"]: port["containerPort"] for port in declared}
    return found | {port["containerPort"]: port["containerPort"] for port in declared}


def service(build: Build, name: str) -> Object:
    """Return a Service of a build, or of the model server that the build expects."""
    return (build if build.has("Service", name) else built(MODEL_SERVER)).one("Service", name)


def service_ports(thing: Object) -> set[int]:
    return {port["port"] for port in thing["spec"]["ports"]}


def test_selectors_select_the_pods_of_their_own_template(build: Build) -> None:
    for thing in build.of("Deployment"):
        labels = labels_of(thing["spec"]["template"])
        assert selects(thing["spec"]["selector"]["matchLabels"], labels)


def test_services_and_budgets_select_pods(build: Build) -> None:
    pods = templates(build.path)
    for thing in build.of("Service"):
        chosen = [pod for pod in pods if selects(thing["spec"]["selector"], labels_of(pod))]
        assert len(chosen) == 1, thing["metadata"]["name"]
        for port in thing["spec"]["ports"]:
            assert port["targetPort"] in ports(chosen[0])
    for thing in build.of("PodDisruptionBudget"):
        labels = thing["spec"]["selector"]["matchLabels"]
        assert [pod for pod in pods if selects(labels, labels_of(pod))]


def test_mounts_accounts_and_probes_of_pods_exist(build: Build) -> None:
    for _, template in build.pods():
        spec = template["spec"]
        account = spec.get("serviceAccountName")
        assert account is None or build.has("ServiceAccount", account)
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounted = {m["name"] for c in containers(template) for m in c["volumeMounts"]}
        assert mounted == volumes
        for source in sources(spec["volumes"]):
            if "configMap" in source:
                # Kubernetes creates the last one in every namespace.
                name = source["configMap"]["name"]
                assert build.has("ConfigMap", name) or name == "kube-root-ca.crt"
            if "secret" in source:
                # The user creates them, as the components' comments say.
                name = source["secret"]["secretName"]
                assert name in ("extproc-tls", "extproc-shared-state")
        for container in containers(template):
            own = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                action = container.get(probe, {})
                for kind in ("httpGet", "tcpSocket"):
                    assert kind not in action or action[kind]["port"] in own


def sources(volumes: list[Object]) -> Iterator[Object]:
    """Return the volumes, and the sources of projected ones."""
    for volume in volumes:
        yield volume
        yield from volume.get("projected", {}).get("sources", [])


def test_network_policies_name_existing_pods_and_ports(build: Build) -> None:
    pods = templates(build.path, "base", "standalone")
    servers = templates(build.path, MODEL_SERVER)
    for policy in build.of("NetworkPolicy"):
        spec = policy["spec"]
        mine = [p for p in pods if selects(spec["podSelector"]["matchLabels"], labels_of(p))]
        assert mine
        for rule in spec.get("ingress", []):
            for port in rule["ports"]:
                assert all(port["port"] in ports(pod) for pod in mine)
        peers = [
            (rule, peer["podSelector"]["matchLabels"])
            for rule in spec.get("egress", [])
            for peer in rule["to"]
            if {MODEL_SERVER_LABEL, "app.kubernetes.io/name"}
            & peer.get("podSelector", {}).get("matchLabels", {}).keys()
        ]
        assert peers or "egress" not in spec
        for rule, selector in peers:
            chosen = [pod for pod in servers if selects(selector, labels_of(pod))]
            assert len(chosen) == 1
            numbers = {port["port"] for port in rule["ports"] if "port" in port}
            assert numbers <= set(ports(chosen[0]))


@pytest.mark.parametrize("path", ["base", "standalone", "overlays/further-namespace"])
def test_sidecars_may_connect_to_every_port_of_pods_with_the_documented_label(path: str) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f'{MODEL_SERVER_LABEL}: "true"' in page
    (policy,) = built(path).of("NetworkPolicy")
    allowed = [
        rule["ports"]
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if peer.get("podSelector") == {"matchLabels": {MODEL_SERVER_LABEL: "true"}}
    ]
    assert allowed == [[{"protocol": "TCP"}]]


def test_monitors_select_existing_pods_and_ports() -> None:
    build = built("overlays/monitoring")
    everything = {
        path: templates(path) for path in ("base", "standalone", "existing-envoy", MODEL_SERVER)
    }
    found: dict[str, set[str]] = {}
    for monitor in build.of("PodMonitor"):
        for path, pods in everything.items():
            for pod in pods:
                if selects(monitor["spec"]["selector"]["matchLabels"], labels_of(pod)):
                    found.setdefault(monitor["metadata"]["name"], set()).add(path)
                    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                        assert endpoint["port"] in ports(pod)
    assert found == {
        "extproc": {"base", "standalone", "existing-envoy"},
        "extproc-envoy": {"base"},
        "vllm": {MODEL_SERVER},
    }


def test_routes_name_existing_gateways_and_backends(build: Build) -> None:
    for route in build.of("HTTPRoute"):
        for parent in route["spec"]["parentRefs"]:
            if not build.of("Gateway"):
                continue  # the gateway is one that the user has
            gateway = build.one("Gateway", parent["name"])
            listeners = {listener["name"] for listener in gateway["spec"]["listeners"]}
            assert parent.get("sectionName", "http") in listeners
        for rule in route["spec"]["rules"]:
            for backend in rule["backendRefs"]:
                if backend.get("kind") == "InferencePool":
                    assert build.has("InferencePool", backend["name"])
                else:
                    assert backend["port"] in service_ports(service(build, backend["name"]))


def test_policies_target_existing_objects(build: Build) -> None:
    policies = ("ClientTrafficPolicy", "EnvoyExtensionPolicy", "BackendTrafficPolicy")
    for policy in build.of(*policies):
        for target in policy["spec"]["targetRefs"]:
            assert build.has(target["kind"], target["name"])
        for processor in policy["spec"].get("extProc", []):
            for backend in processor["backendRefs"]:
                assert backend["port"] in service_ports(build.one("Service", backend["name"]))


def test_pool_selects_the_model_server_and_its_picker_is_the_sidecar() -> None:
    build = built("overlays/inference-pool")
    spec = build.one("InferencePool")["spec"]
    model_server = templates(MODEL_SERVER)[0]
    assert selects(spec["selector"]["matchLabels"], labels_of(model_server))
    assert {port["number"] for port in spec["targetPorts"]} <= set(ports(model_server))
    picker = spec["endpointPickerRef"]
    assert picker["port"]["number"] in service_ports(build.one("Service", picker["name"]))


def test_istio_hosts_are_services() -> None:
    build = built("overlays/istio")
    spec = build.one("EnvoyFilter")["spec"]
    assert build.has("Gateway", spec["workloadSelector"]["labels"][GATEWAY_NAME])
    patches = {patch["applyTo"]: patch for patch in spec["configPatches"]}
    cluster = patches["CLUSTER"]["match"]["cluster"]
    assert cluster["portNumber"] in service_ports(host(cluster["service"]))
    filter_ = patches["HTTP_FILTER"]["patch"]["value"]["typed_config"]
    name = filter_["grpc_service"]["envoy_grpc"]["cluster_name"]
    outbound, port, subset, fqdn = name.split("|")
    assert (outbound, subset) == ("outbound", "")
    assert int(port) in service_ports(host(fqdn))
    rule = built("overlays/inference-pool-istio").one("DestinationRule")
    assert host(rule["spec"]["host"])["metadata"]["name"] == "extproc"


GATEWAY_NAME = "gateway.networking.k8s.io/gateway-name"


def host(fqdn: str) -> Object:
    """Return the Service with a fully qualified name."""
    name, namespace, rest = fqdn.split(".", 2)
    assert rest == "svc.cluster.local"
    found = service(built("standalone"), name)
    assert found["metadata"]["namespace"] == namespace
    return found


@pytest.mark.parametrize("path", WITH_SIDECAR)
def test_sidecar_watches_the_document_that_it_may_read(path: str) -> None:
    build = built(path)
    sidecar = named(containers(build.sidecar_pod()), "extproc")
    flag = "--models-configmap="
    watched = next(a.removeprefix(flag) for a in sidecar["args"] if a.startswith(flag))
    assert named(sidecar["env"], "POD_NAMESPACE")["valueFrom"] == {
        "fieldRef": {"fieldPath": "metadata.namespace"}
    }
    namespace, name = watched.split("/")
    assert namespace == "$(POD_NAMESPACE)"
    document = build.one("ConfigMap", name)
    assert set(document["data"]) == {"models.yaml"}
    role = build.one("Role", "extproc-models")
    assert [name] in [rule.get("resourceNames") for rule in role["rules"]]


def test_envoys_ports_are_container_ports() -> None:
    envoy = named(containers(templates("base")[0]), "envoy")
    declared = {port["containerPort"] for port in envoy["ports"]}
    listeners = envoy_of_base()["static_resources"]["listeners"]
    assert {
        listener["address"]["socket_address"]["port_value"] for listener in listeners
    } == declared
    admin = envoy_of_base()["admin"]["address"]["socket_address"]
    assert str(admin["port_value"]) == named(envoy["env"], "DRAIN_ADMIN_PORT")["value"]
    assert admin["address"] == "127.0.0.1"


def test_fallback_is_the_headless_service_of_the_model_server() -> None:
    clusters = envoy_of_base()["static_resources"]["clusters"]
    endpoints = named(clusters, "fallback")["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = endpoints[0]["endpoint"]["address"]["socket_address"]
    thing = built(MODEL_SERVER).one("Service", address["address"])
    assert thing["spec"]["clusterIP"] == "None"
    assert {port["targetPort"] for port in thing["spec"]["ports"]} == {"http"}
    assert ports(templates(MODEL_SERVER)[0])["http"] == address["port_value"]


def test_benchmark_requests_the_served_model_from_the_gateway() -> None:
    job = built("overlays/benchmark").one("Job")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    assert service_ports(built("base").one("Service", flags["base-url"][7:])) == {80}
    vllm = templates(MODEL_SERVER)[0]["spec"]["containers"][0]["args"]
    assert f"--served-model-name={flags['model']}" in vllm
    assert flags["tokenizer"] == vllm[0]
