"""Kustomizations and their objects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
KUBECTL = Path(sys.executable).parent / "kubectl"

Object = dict[str, Any]

# An example of a user's Deployment, which the components patch.
EXISTING_ENVOY = "existing-envoy"
_ALL = sorted(
    str(path.parent.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("kustomization.yaml")
)
# Kustomizations that are only parts of others.
PARTS = [path for path in _ALL if path == "sidecar" or path.startswith("components/")]
BUILDS = [*(path for path in _ALL if path not in PARTS), EXISTING_ENVOY]


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
    """Build a kustomization under manifests/."""
    example = path == EXISTING_ENVOY
    directory = Path(__file__).parent / "existing_envoy" if example else MANIFESTS / path
    return Build(path, tuple(filter(None, yaml.safe_load_all(kustomize(directory)))))


def containers(template: Mapping[str, Any]) -> list[Object]:
    """Return the containers of a pod template, including native sidecars."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(things: list[Object], name: str) -> Object:
    """Return the object with a name."""
    found = [thing for thing in things if thing["name"] == name]
    assert len(found) == 1, f"{len(found)} called {name}"
    return found[0]


def labels_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """Return an object's labels."""
    labels: dict[str, str] = thing["metadata"].get("labels", {})
    return labels


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True if the labels match a selector's matchLabels."""
    return all(labels.get(key) == value for key, value in selector.items())
