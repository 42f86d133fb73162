"""Commands and names in docs/kubernetes.md, as far as tests can check them without a cluster."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import yaml

from tests.manifests.builds import MANIFESTS, ROOT, built, containers, kustomize

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
README = (MANIFESTS / "README.md").read_text()


def test_named_paths_exist() -> None:
    named = set(re.findall(r"\bmanifests/[\w./-]*\w", PAGE))
    assert named
    for path in named:
        assert (ROOT / path).exists(), path
    for path in re.findall(r"^\| `([\w/-]+)/`", README, flags=re.MULTILINE):
        assert (MANIFESTS / path).is_dir(), path


def test_readme_lists_every_kustomization() -> None:
    told = set(re.findall(r"^\| `([\w/-]+)/`", README, flags=re.MULTILINE))
    there = {
        str(path.parent.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("kustomization.yaml")
    }
    assert told == there | {"compose", "helm/extproc", "image", "systemd"}


def test_applied_directories_build() -> None:
    applied = set(re.findall(r"kubectl apply -k manifests/([\w/-]+)", PAGE))
    assert "base" in applied
    for path in applied:
        assert built(path).objects


def test_example_kustomization_builds(tmp_path: Path) -> None:
    found = re.findall(
        r"^ *```yaml\n( *# kustomization\.yaml\n.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE
    )
    assert len(found) == 1
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    (tmp_path / "kustomization.yaml").write_text(textwrap.dedent(found[0]))
    things = list(yaml.safe_load_all(kustomize(tmp_path)))
    deployment = next(thing for thing in things if thing["kind"] == "Deployment")
    images = {c["name"]: c["image"] for c in containers(deployment["spec"]["template"])}
    assert images["extproc"] == "registry.example/extproc:0.1.0"
    documents = [thing for thing in things if "models.yaml" in thing.get("data", {})]
    assert len(documents) == 1
    assert len(yaml.safe_load(documents[0]["data"]["models.yaml"])["models"]) == 1


def test_named_objects_exist() -> None:
    names = re.findall(r"(deployment|service|job|gateway)/([\w-]+)", PAGE)
    kinds = {"deployment": "Deployment", "service": "Service", "job": "Job", "gateway": "Gateway"}
    builds = [built(path) for path in ("base", "overlays/benchmark", "overlays/istio")]
    # Istio creates this one and chooses its name.
    for kind, name in set(names) - {("deployment", "llm-istio")}:
        assert any(build.has(kinds[kind], name) for build in builds), (kind, name)


def test_permissions_table_is_complete() -> None:
    section = PAGE.partition("## Permissions")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| [^|]+ \| [^|]+ \| `(\w+)`", section, flags=re.MULTILINE))
    granted = {
        resource
        for path in ("base", "overlays/inference-pool")
        for role in built(path).of("Role")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert rows == granted


def test_every_alert_is_explained_once() -> None:
    groups = built("overlays/monitoring").one("PrometheusRule")["spec"]["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"]]
    operation = (ROOT / "docs" / "operation.md").read_text()
    explained = re.findall(r"^\| `(Extproc\w+)` \|", PAGE + operation, flags=re.MULTILINE)
    assert sorted(explained) == sorted(alerts)
