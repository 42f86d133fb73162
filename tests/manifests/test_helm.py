"""The Helm chart has the same objects as the kustomizations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from extproc import __version__
from extproc.adapters.configuration.document import parse
from extproc.lab.pages.chart import FILES, FLAVOURS, files
from tests.manifests.builds import (
    EXISTING_ENVOY,
    ROOT,
    Build,
    Object,
    assembled,
    built,
    kustomize,
    namespace_of,
)
from tests.manifests.helm import CHART, chart, findings, notes
from tests.manifests.validation import validate

SHARING = {"sharedState": {"enabled": True}}
SCALING = {"autoscaling": {"enabled": True}, "priority": {"enabled": True}}
MONITORING = {"monitoring": {"enabled": True}}
TLS = {"tls": {"enabled": True}}
DEPLOYED = sorted(FLAVOURS.keys() - {EXISTING_ENVOY})
"""The flavours whose pods the chart itself creates."""

Key = tuple[str, str, str]


def keyed(*builds: Build) -> dict[Key, Object]:
    """Return objects by kind, namespace and name, which must be unique."""
    objects = [thing for build in builds for thing in build.objects]
    found = {(one["kind"], namespace_of(one), one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def assert_same(rendered: Build, *kustomized: Build) -> None:
    """Compare objects one by one, because a difference in all of them is unreadable."""
    ours, theirs = keyed(rendered), keyed(*kustomized)
    assert ours.keys() == theirs.keys()
    for key, thing in ours.items():
        assert thing == theirs[key], key


def combined(path: str, *components: str) -> Build:
    """Build a kustomization with components."""
    return assembled(
        {
            "namespace": "inference",
            "resources": [f"manifests/{path}"],
            "components": [f"manifests/components/{name}" for name in components],
        }
    )


class TestObjects:
    def test_without_values_are_those_of_base(self) -> None:
        assert_same(chart(), built("base"))

    @pytest.mark.parametrize("gateway", DEPLOYED)
    def test_of_each_gateway_are_those_of_its_kustomization(self, gateway: str) -> None:
        assert_same(chart({"gateway": gateway}), built(FLAVOURS[gateway]))

    @pytest.mark.parametrize("gateway", DEPLOYED)
    def test_with_shared_state_are_those_of_the_components(self, gateway: str) -> None:
        expected = combined(FLAVOURS[gateway], "shared-state", "valkey")
        assert_same(chart({"gateway": gateway, **SHARING}), expected)

    @pytest.mark.parametrize("gateway", DEPLOYED)
    def test_with_autoscaling_and_priority_are_those_of_the_components(self, gateway: str) -> None:
        pods = "gateway" if gateway == "bundled" else "picker"
        expected = combined(FLAVOURS[gateway], f"{pods}-autoscaling", "priority")
        assert_same(chart({"gateway": gateway, **SCALING}), expected)

    @pytest.mark.parametrize("gateway", ["standalone", "inference-pool"])
    def test_with_tls_are_those_of_the_component(self, gateway: str) -> None:
        assert_same(chart({"gateway": gateway, **TLS}), combined(FLAVOURS[gateway], "picker-tls"))

    def test_with_monitoring_include_those_of_its_overlay(self) -> None:
        assert_same(chart(MONITORING), built("base"), built("overlays/monitoring"))

    def test_for_models_elsewhere_include_the_permissions_there(self) -> None:
        models = [{"name": "m", "service": {"namespace": "models", "name": "s", "port": "http"}}]
        rendered = keyed(chart({"models": models}))
        expected = keyed(built("overlays/further-namespace"))
        assert {key: rendered[key] for key in expected} == expected
        assert rendered.keys() - expected.keys() == keyed(built("base")).keys()

    @pytest.mark.parametrize("values", [{}, SHARING], ids=["alone", "shared"])
    def test_for_an_existing_envoy_and_the_printed_patch_are_those_of_the_component(
        self, values: Object, tmp_path: Path
    ) -> None:
        components = ["existing-envoy", *(["shared-state", "valkey"] if values else [])]
        paths = [f"manifests/components/{name}" for name in components]
        expected = with_existing_envoy(tmp_path / "kustomized", {"components": paths})
        values = {"gateway": EXISTING_ENVOY, **values}
        patch = yaml.safe_load("spec:" + notes(values).partition("\nspec:")[2])
        patch |= {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "my-envoy"}}
        patches = {"patches": [{"patch": yaml.safe_dump(patch)}]}
        patched = with_existing_envoy(tmp_path / "patched", patches)
        assert_same(Build("patched", (*chart(values).objects, *patched.objects)), expected)


def with_existing_envoy(directory: Path, kustomization: Object) -> Build:
    """Build a kustomization with the example of a user's Deployment."""
    example = ROOT / "tests" / "manifests" / "existing_envoy" / "deployment.yaml"
    directory.mkdir()
    (directory / "manifests").symlink_to(ROOT / "manifests")
    (directory / "deployment.yaml").write_text(example.read_text())
    text = {"namespace": "inference", "resources": ["deployment.yaml"], **kustomization}
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return Build("the user's", tuple(filter(None, yaml.safe_load_all(kustomize(directory)))))


class TestChart:
    def test_files_are_built_from_the_kustomizations(self) -> None:
        assert {path.name: path.read_text() for path in FILES.iterdir()} == files(), "make chart"

    def test_has_no_lint_findings(self) -> None:
        assert findings() == []

    def test_has_the_version_of_the_package(self) -> None:
        metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
        assert metadata["version"] == metadata["appVersion"] == __version__

    def test_schema_has_exactly_the_values(self) -> None:
        schema = json.loads((CHART / "values.schema.json").read_text())
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        assert schema["properties"].keys() - {"global"} == values.keys()
        for name, value in values.items():
            inner = schema["properties"][name].get("properties")
            assert inner is None or inner.keys() == value.keys(), name

    def test_accepts_the_values_of_the_guide(self) -> None:
        page = (ROOT / "docs" / "kubernetes.md").read_text()
        (text,) = re.findall(r"^```yaml\n(# values\.yaml\n.*?)^```", page, re.DOTALL | re.MULTILINE)
        document = chart(yaml.safe_load(text)).one("ConfigMap", "extproc-models")
        assert parse(document["data"]["models.yaml"].encode()).models

    @pytest.mark.parametrize("gateway", FLAVOURS)
    def test_release_may_be_in_any_namespace(self, gateway: str) -> None:
        build = chart({"gateway": gateway, **SHARING, **MONITORING}, namespace="elsewhere")
        assert {thing["metadata"]["namespace"] for thing in build.objects} == {"elsewhere"}
        assert not re.search(r"(?<![\w.-])inference(?![\w.-])|inference\.svc", str(build.objects))
        assert not re.search(r"RELEASE-|MODELS?-[A-Z]", str(build.objects))

    @pytest.mark.parametrize("namespace", ["123", "1e3", "on"])
    def test_namespaces_may_look_like_other_values_of_yaml(self, namespace: str) -> None:
        models = [{"name": "m", "service": {"namespace": "456", "name": "s", "port": "http"}}]
        builds = [chart({"models": models, **SHARING}, namespace), chart({}, namespace)]
        for thing in (thing for build in builds for thing in build.objects):
            validate(thing)
            assert thing["metadata"]["namespace"] in (namespace, "456")
        document = builds[1].one("ConfigMap", "extproc-models")["data"]["models.yaml"]
        (model,) = parse(document.encode()).models
        assert model.service is not None
        assert model.service.namespace == namespace
