"""Kustomizations and their objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
KUBECTL = Path(sys.executable).parent / "kubectl"

Object = dict[str, Any]

CLUSTER_SCOPED = ("PriorityClass",)
"""The kinds of objects that have no namespace."""

# The parser in C, where PyYAML has it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# An example of a user's Deployment, which the components patch.
EXISTING_ENVOY = "existing-envoy"
_ALL = sorted(
    str(path.parent.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("kustomization.yaml")
)
# Kustomizations that are only parts of others.
PARTS = [path for path in _ALL if path == "sidecar" or path.startswith("components/")]
_ONES = [*(path for path in _ALL if path not in PARTS), EXISTING_ENVOY]

_SHARING = " that shares its state"
# All others with a sidecar; overlays/shared-state is base/ with the components.
SHARING = [
    f"{path}{_SHARING}"
    for path in (
        "standalone",
        "overlays/envoy-gateway",
        "overlays/istio",
        "overlays/inference-pool",
        "overlays/inference-pool-istio",
        EXISTING_ENVOY,
    )
]
SHARED_STATE = ("shared-state", "valkey")
"""The components with which sidecars share their state."""

_SCALING = " with an autoscaler"
PICKER_SCALING = f"standalone{_SCALING}"
"""standalone/ with the components that overlays/autoscaling adds to base/."""

_COMPONENTS = {_SHARING: SHARED_STATE, _SCALING: ("picker-autoscaling", "priority")}

BUILDS = [*_ONES, *SHARING, PICKER_SCALING]


@dataclass(frozen=True)
class Build:
    """The objects of a kustomization."""

    path: str
    objects: tuple[Object, ...]

    def of(self, *kinds: str) -> list[Object]:
        """Return the objects of these kinds."""
        return [thing for thing in self.objects if thing["kind"] in kinds]

    def one(self, kind: str, name: str = "") -> Object:
        """Return the only object of a kind, or the one with a name."""
        found = [thing for thing in self.of(kind) if name in ("", thing["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} {kind} {name} in {self.path}"
        return found[0]

    def has(self, kind: str, name: str) -> bool:
        """True if the object exists."""
        return any(thing["metadata"]["name"] == name for thing in self.of(kind))

    def pods(self) -> Iterator[tuple[Object, Object]]:
        """Yield each object that creates pods, with its pod template."""
        for thing in self.of("Deployment", "Job"):
            yield thing, thing["spec"]["template"]

    def sidecar_pod(self) -> Object:
        """Return the template of the only pods with a sidecar."""
        pods = [pod for _, pod in self.pods() if labels_of(pod).get("extproc-sidecar") == "true"]
        assert len(pods) == 1, f"{len(pods)} in {self.path}"
        return pods[0]


def kustomize(directory: Path) -> str:
    """Return the output of `kubectl kustomize`. Raise AssertionError with its error message."""
    result = subprocess.run(
        [KUBECTL, "kustomize", "--load-restrictor=LoadRestrictionsRootOnly", directory],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@cache
def built(path: str) -> Build:
    """Build a kustomization under manifests/, or one of `SHARING`, or `PICKER_SCALING`."""
    for suffix, names in _COMPONENTS.items():
        if path.endswith(suffix):
            alone = path.removesuffix(suffix)
            namespace = "edge" if alone == EXISTING_ENVOY else "inference"
            components = [f"manifests/components/{name}" for name in names]
            parts = {"resources": [_directory(alone)], "components": components}
            return Build(path, assembled({"namespace": namespace, **parts}).objects)
    return Build(path, _objects(kustomize(ROOT / _directory(path))))


def assembled(kustomization: Mapping[str, Any]) -> Build:
    """Build a kustomization at the root of a checkout."""
    with TemporaryDirectory() as directory:
        # kustomize needs relative paths, so the directories are linked.
        for name in ("manifests", "tests"):
            (Path(directory) / name).symlink_to(ROOT / name)
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(dict(kustomization)))
        return Build("a user's kustomization", _objects(kustomize(Path(directory))))


def adapter_rules() -> list[Object]:
    """Return the rules for prometheus-adapter."""
    text = (MANIFESTS / "overlays" / "monitoring" / "prometheus-adapter.yaml").read_text()
    rules: list[Object] = yaml.safe_load(text)["rules"]["custom"]
    return rules


def _directory(path: str) -> str:
    return "tests/manifests/existing_envoy" if path == EXISTING_ENVOY else f"manifests/{path}"


def _objects(text: str) -> tuple[Object, ...]:
    return tuple(filter(None, yaml.load_all(text, _LOADER)))


def containers(template: Mapping[str, Any]) -> list[Object]:
    """Return the containers of a pod template, including native sidecars."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(things: list[Object], name: str) -> Object:
    """Return the object with a name."""
    found = [thing for thing in things if thing["name"] == name]
    assert len(found) == 1, f"{len(found)} called {name}"
    return found[0]


def namespace_of(thing: Mapping[str, Any]) -> str:
    """Return an object's namespace, or "" for one of the cluster."""
    namespace: str = thing["metadata"].get("namespace", "")
    assert bool(namespace) is (thing["kind"] not in CLUSTER_SCOPED)
    return namespace


def labels_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's labels."""
    labels: dict[str, str] = thing["metadata"].get("labels", {})
    return labels


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True if the labels match a selector's matchLabels."""
    return all(labels.get(key) == value for key, value in selector.items())
