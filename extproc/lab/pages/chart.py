"""The objects of the Helm chart, manifests/helm/extproc/files, built from the kustomizations.

`make chart` writes one file for each flavour of the chart, and one for each optional part. The
chart's templates read these files and apply the values, so the kustomizations stay the only source.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
FILES = ROOT / "manifests" / "helm" / "extproc" / "files"

FLAVOURS = {
    "bundled": "base",
    "existing-envoy": "sidecar",
    "standalone": "standalone",
    "envoy-gateway": "overlays/envoy-gateway",
    "istio": "overlays/istio",
    "inference-pool": "overlays/inference-pool",
    "inference-pool-istio": "overlays/inference-pool-istio",
}
"""The chart's flavours, with the kustomizations that they equal."""

ADDITIONS = {
    "monitoring": "overlays/monitoring",
    "further-namespace": "overlays/further-namespace",
}
"""Parts of the chart that only add objects."""

COMPONENTS = {
    "gateway-autoscaling": ("base",),
    "picker-autoscaling": ("standalone",),
    "picker-tls": ("standalone",),
    "priority": ("base", "standalone"),
    "shared-state": ("base", "standalone"),
    "valkey": ("base", "standalone"),
}
"""Components that also change the sidecar's pod, with the kustomizations that they may change."""

NAMES = {
    "namespace: inference\n": "namespace: RELEASE-NAMESPACE\n",
    "{namespace: inference,": "{namespace: RELEASE-NAMESPACE,",
    "-n inference ": "-n RELEASE-NAMESPACE ",
    "inference.svc.cluster.local": "RELEASE-NAMESPACE.svc.cluster.local",
    "serviceaccount:inference:": "serviceaccount:RELEASE-NAMESPACE:",
    "vllm-llama": "MODEL-SERVER",
}
"""Names that the chart replaces by values."""

MODELS = {
    "namespace: models\n": "namespace: MODELS-NAMESPACE\n",
    "metadata.name: models\n": "metadata.name: MODELS-NAMESPACE\n",
    "extproc-to-models": "extproc-to-MODELS-NAMESPACE",
}
"""The same in the objects for model servers in another namespace."""

Object = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes long texts as blocks, and never an alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def files() -> dict[str, str]:
    """Return the text of each file by its path under `files/`."""
    found = {name: _written(_built(path)) for name, path in FLAVOURS.items()}
    found |= {name: _written(_built(path)) for name, path in ADDITIONS.items()}
    for name, paths in COMPONENTS.items():
        changes = [_change(path, name) for path in paths]
        assert all(change == changes[0] for change in changes), f"{name} differs by kustomization"
        found[name] = _written(changes[0])
    patch = ROOT / "manifests" / "components" / "existing-envoy" / "sidecar.yaml"
    found["sidecar-patch"] = _written(yaml.safe_load(patch.read_text())["spec"])
    return {f"{name}.yaml": text for name, text in found.items()}


def _written(content: object) -> str:
    # Lines without a limit, because a name at the end of a folded one would not be found.
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=sys.maxsize)
    for name, placeholder in {**NAMES, **MODELS}.items():
        text = text.replace(name, placeholder)
    return f"# Written by `make chart`. Change the kustomizations instead.\n{text}"


def _built(path: str) -> list[Object]:
    return _kustomized(path, ())


@cache
def _kustomized(path: str, components: tuple[str, ...]) -> list[Object]:
    """Build a kustomization with components, which have paths relative to the manifests."""
    with TemporaryDirectory() as directory:
        (Path(directory) / "manifests").symlink_to(ROOT / "manifests")
        # The namespace of overlays/further-namespace is that of the model servers.
        kustomization: Object = {"resources": [f"manifests/{path}"]}
        if path != ADDITIONS["further-namespace"]:
            kustomization["namespace"] = "inference"
        kustomization["components"] = [f"manifests/components/{name}" for name in components]
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        kubectl = str(Path(sys.executable).parent / "kubectl")
        command = [kubectl, "kustomize", "--load-restrictor=LoadRestrictionsNone", directory]
        built = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [thing for thing in yaml.safe_load_all(built.stdout) if thing]


def _change(path: str, component: str) -> Object:
    """Return what a component adds: to the sidecar's container and pod, to egress, and objects.

    An autoscaler's component also removes `replicas`.
    """
    before = {_key(thing): thing for thing in _built(path)}
    after = {_key(thing): thing for thing in _kustomized(path, (component,))}
    change: Object = {"container": {}, "pod": {}, "volumes": [], "first": False, "egress": []}
    change["replicas"] = True
    for key, thing in after.items():
        if key not in before or thing == before[key]:
            continue
        old, new = before[key]["spec"], thing["spec"]
        if thing["kind"] == "NetworkPolicy":
            change["egress"] = _added(old["egress"], new["egress"])
        else:
            pods = old["template"]["spec"], new["template"]["spec"]
            change["replicas"] = "replicas" in new
            change["pod"] = {key: pods[1][key] for key in pods[1].keys() - pods[0].keys()}
            change["container"] = _added_keys(*map(_sidecar, pods))
            change["volumes"] = _added(*(pod["volumes"] for pod in pods))
            # kustomize inserts before what is there, or appends, as the kind of patch demands.
            change["first"] = pods[1]["volumes"][0] in change["volumes"]
    change["objects"] = [thing for key, thing in after.items() if key not in before]
    return change


def _key(thing: Mapping[str, Any]) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]


def _sidecar(pod: Mapping[str, Any]) -> Object:
    containers: Iterator[Object] = (
        container
        for container in [*pod.get("initContainers", []), *pod["containers"]]
        if container["name"] == "extproc"
    )
    return next(containers)


def _added_keys(old: Object, new: Object) -> Object:
    return {
        key: _added(old.get(key, []), value) for key, value in new.items() if value != old.get(key)
    }


def _added(old: list[Any], new: list[Any]) -> list[Any]:
    added = [item for item in new if item not in old]
    assert sorted(map(str, old + added)) == sorted(map(str, new)), "a component removes something"
    return added


def main() -> None:
    """Replace the files of the chart."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir(parents=True)
    for name, text in files().items():
        (FILES / name).write_text(text)


if __name__ == "__main__":
    main()
