"""The Helm chart, rendered by Helm's own library."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from tests.manifests.builds import MANIFESTS, Build, Object

# Helm 4 as a library, in a package that has wheels for some platforms only.
helm_python = pytest.importorskip("helm_python")

CHART = MANIFESTS / "helm" / "extproc"
OWN_LABELS = {"helm.sh/chart": "extproc-0.1.0", "app.kubernetes.io/managed-by": "Helm"}
"""The labels that the chart adds to each object."""


@cache
def _chart() -> Any:
    return helm_python.Chart.load(CHART)


def _rendered(values: Object, namespace: str) -> dict[str, str]:
    rendered: dict[str, str] = _chart().render(values, name="llm", namespace=namespace)
    return {path.rpartition("/")[2]: text for path, text in rendered.items()}


def chart(values: Object | None = None, namespace: str = "inference") -> Build:
    """Return the chart's objects without the labels that Helm's conventions add."""
    text = _rendered(values or {}, namespace)["objects.yaml"]
    objects = tuple(filter(None, yaml.safe_load_all(text)))
    for thing in objects:
        labels = thing["metadata"]["labels"]
        assert {key: labels.pop(key) for key in OWN_LABELS} == OWN_LABELS
    return Build(f"the chart with {values}", objects)


def notes(values: Object) -> str:
    """Return the text that Helm prints after an installation."""
    return _rendered(values, "inference")["NOTES.txt"]


def refusal(values: Object) -> str:
    """Return the message with which Helm refuses values."""
    with pytest.raises(helm_python.HelmError) as refused:
        _rendered(values, "inference")
    return str(refused.value)


def findings() -> list[Object]:
    """Return what `helm lint --strict` finds, without mere information."""
    report = helm_python.chart.lint(CHART, strict=True)
    return [found for found in report["messages"] if found["severity"] > 1]
