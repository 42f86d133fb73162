"""Kustomizations and what they build."""

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

# A Deployment such as users have, so that the components for it have something to patch.
EXISTING_ENVOY = "existing-envoy"
_ALL = sorted(
    str(path.parent.relative_to(MANIFESTS)) for path in MANIFESTS.rglob("kustomization.yaml")
)
# Those that are only ever parts of others.
PARTS = [path for path in _ALL if path == "sidecar" or path.startswith("components/")]
BUILDS = [*(path for path in _ALL if path not in PARTS), EXISTING_ENVOY]


@dataclass(frozen=True)
class Build:
    """What a kustomization builds."""

    path: str
    objects: tuple[Object, ...]

    def of(self, *kinds: str) -> list[Object]:
        """The objects of these kinds."""
        return [thing for thing in self.objects if thing["kind"] in kinds]

    def one(self, kind: str, name: str = "") -> Object:
        """The only object of a kind, or of that name."""
        found = [thing for thing in self.of(kind) if name in ("", thing["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} {kind} {name} in {self.path}"
        return found[0]

    def has(self, kind: str, name: str) -> bool:
        """Whether there is such an object."""
        return any(thing["metadata"]["name"] == name for thing in self.of(kind))

    def pods(self) -> Iterator[tuple[Object, Object]]:
        """Each object that makes pods, with its template."""
        for thing in self.of("Deployment", "Job"):
            yield thing, thing["spec"]["template"]


def kustomize(directory: Path) -> str:
    """What `kubectl kustomize` prints. Raises AssertionError with its complaint."""
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
    """The objects of a kustomization under manifests/."""
    example = path == EXISTING_ENVOY
    directory = Path(__file__).parent / "existing_envoy" if example else MANIFESTS / path
    return Build(path, tuple(filter(None, yaml.safe_load_all(kustomize(directory)))))


def containers(template: Mapping[str, Any]) -> list[Object]:
    """All containers of a pod template, native sidecars too."""
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(things: list[Object], name: str) -> Object:
    """The one of that name."""
    found = [thing for thing in things if thing["name"] == name]
    assert len(found) == 1, f"{len(found)} called {name}"
    return found[0]


def labels_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """An object's labels."""
    labels: dict[str, str] = thing["metadata"].get("labels", {})
    return labels


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a label selector's matchLabels hold."""
    return all(labels.get(key) == value for key, value in selector.items())
