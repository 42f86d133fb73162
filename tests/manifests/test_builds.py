"""Every kustomization builds into objects that an API server accepts."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.manifests.builds import (
    MANIFESTS,
    PARTS,
    Build,
    built,
    containers,
    kustomize,
    labels_of,
    namespace_of,
)
from tests.manifests.validation import CUSTOM, NEWEST, OLDEST, schema, validate


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_objects_have_no_unknown_or_missing_fields(build: Build, version: str) -> None:
    for thing in build.objects:
        if thing["kind"] not in CUSTOM:
            validate(thing, version)


def test_custom_objects_have_no_unknown_or_missing_fields(build: Build) -> None:
    for thing in build.of(*CUSTOM):
        validate(thing)


@pytest.mark.parametrize("kind", sorted(CUSTOM))
def test_schemas_are_valid_closed_and_name_their_source(kind: str) -> None:
    found = schema(kind)
    jsonschema.Draft202012Validator.check_schema(found)
    assert re.match(r"Trimmed from [\w.-]+/[\w.-]+, .+, v?\d[\d.]*: \w+$", found["$comment"])
    assert found["additionalProperties"] is False
    assert found["properties"]["spec"]["additionalProperties"] is False


def test_every_schema_is_used(every_build: dict[str, Build]) -> None:
    kinds = {thing["kind"] for build in every_build.values() for thing in build.objects}
    assert kinds >= CUSTOM


@pytest.mark.parametrize("path", PARTS)
def test_parts_build_on_their_own(path: str) -> None:
    kustomize(MANIFESTS / path)


def test_objects_have_a_namespace_and_standard_labels(build: Build) -> None:
    for thing in build.objects:
        namespace_of(thing)
        if not build.path.startswith(("existing-envoy", "overlays/benchmark")):
            assert labels_of(thing)["app.kubernetes.io/name"] in ("extproc", "vllm", "valkey")


def test_objects_are_unique(build: Build) -> None:
    names = [
        (thing["kind"], namespace_of(thing), thing["metadata"]["name"]) for thing in build.objects
    ]
    assert len(names) == len(set(names))


def test_images_are_pinned_without_a_registry(build: Build) -> None:
    for _, template in build.pods():
        for container in containers(template):
            assert re.fullmatch(r"[a-z0-9_-]+(/[a-z0-9_-]+)?:v?\d+\.\d+\.\d+", container["image"])


def test_only_config_maps_that_are_not_watched_have_a_hash_in_their_name() -> None:
    names = {thing["metadata"]["name"] for thing in built("base").of("ConfigMap")}
    assert "extproc-models" in names
    assert any(re.fullmatch(r"extproc-envoy-[a-z0-9]{10}", name) for name in names)
    assert built("overlays/monitoring").has("ConfigMap", "extproc-dashboard")


def test_the_namespace_can_be_chosen(tmp_path: Path) -> None:
    # kustomize needs a relative path, so the directory is linked.
    (tmp_path / "manifests").symlink_to(MANIFESTS)
    (tmp_path / "kustomization.yaml").write_text(
        "namespace: elsewhere\nresources: [manifests/base]\n"
    )
    things = list(yaml.safe_load_all(kustomize(tmp_path)))
    assert {thing["metadata"]["namespace"] for thing in things} == {"elsewhere"}
    bound = [subject for thing in things for subject in thing.get("subjects", [])]
    assert {subject["namespace"] for subject in bound} == {"elsewhere"}
