"""The pages: links, paths, models documents, and the migration from KubeAI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.adapters.configuration.document import parse
from extproc.core.schema import LoadBalancingSpec, PrefixHashSpec
from tests.manifests.builds import kustomize

ROOT = Path(__file__).parents[1]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "manifests/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
MIGRATION = ROOT / "docs" / "migrating-from-kubeai.md"

Object = dict[str, Any]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language, also those inside lists."""
    fence = rf"^( *)```{language}\n(.*?)^\1```"
    found = re.findall(fence, page.read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_gives_the_result_of_the_fault_tests() -> None:
    result = r"^\*\*(\d+) faults: (\d+) held"
    found = re.search(result, (ROOT / "docs" / "reliability.md").read_text(), re.MULTILINE)
    assert found is not None
    assert f"[{found[2]} of {found[1]} fault tests]" in (ROOT / "README.md").read_text()


def test_the_readme_gives_the_measured_cost_of_a_request() -> None:
    measured = re.search(
        r"^\| sidecar CPU per request, fast transport, us \| (\S+) ",
        (ROOT / "docs" / "performance.md").read_text(),
        re.MULTILINE,
    )
    assert measured is not None
    cost = f"[{float(measured[1]):.0f} us of CPU](docs/performance.md)"
    assert cost in (ROOT / "README.md").read_text()


@pages
def test_link_targets_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pages
def test_named_paths_exist(page: Path) -> None:
    tops = "docs|envoy|extproc|manifests|protos|tests"
    for path in re.findall(rf"`((?:{tops})/[\w./-]*)`", page.read_text()):
        assert (ROOT / path).exists(), path


def models_documents(page: Path) -> Iterator[str]:
    """Yield the models documents on a page, also those inside ConfigMaps and patches.

    Values of the Helm chart, which may leave out the namespace, begin with their file name.
    """
    for text in blocks(page, "yaml"):
        if re.search(r"^models:", text, re.MULTILINE) and not text.startswith("# values.yaml"):
            yield text
    for block in blocks(page, "yaml"):
        for inner in re.findall(r"^( *)models\.yaml: \|\n((?:\1 +.*\n)+)", block, re.MULTILINE):
            yield inner[1]


@pages
def test_models_documents_are_valid(page: Path) -> None:
    for document in models_documents(page):
        assert parse(document.encode()).models


def test_pages_have_the_expected_models_documents() -> None:
    counts = {str(page.relative_to(ROOT)): len(list(models_documents(page))) for page in PAGES}
    assert {name: count for name, count in counts.items() if count} == {
        "README.md": 1,
        "docs/configuration.md": 1,
        "docs/endpoints.md": 1,
        "docs/flow-control.md": 1,
        "docs/kubernetes.md": 1,
        "docs/migrating-from-kubeai.md": 1,
        "docs/responses.md": 1,
        "docs/strategies.md": 1,
    }


def test_chain_on_a_page_is_valid() -> None:
    chains = [
        yaml.safe_load(block)["loadBalancing"]
        for page in PAGES
        for block in blocks(page, "yaml")
        if block.startswith("loadBalancing:") and "strategy: Chain" in block
    ]
    assert len(chains) == 1
    assert all(LoadBalancingSpec.model_validate(chain).chain for chain in chains)


class TestTreeOfPackages:
    TREE = re.search(
        r"^```\n(extproc/core/schema .*?)^```",
        (ROOT / "docs" / "architecture.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )

    def named(self) -> set[str]:
        assert self.TREE
        columns = re.findall(r"^(.+?)  ", self.TREE[1], re.MULTILINE)
        return {path.rstrip("/") for column in columns for path in column.split(", ")}

    def test_named_paths_exist(self) -> None:
        for path in self.named():
            assert (ROOT / path).exists() or (ROOT / "extproc" / path).exists(), path

    def test_has_every_package(self) -> None:
        packages = {
            str(path.parent.relative_to(ROOT)) for path in (ROOT / "extproc").rglob("__init__.py")
        }
        parents = {
            "extproc",
            "extproc/adapters",
            "extproc/core",
            "extproc/lab",
            "extproc/edge/wire",
        }
        assert packages - parents <= self.named()


def migration(title: str) -> Object:
    """Return the block of the migration page that begins with a comment."""
    found = [text for text in blocks(MIGRATION, "yaml") if text.startswith(f"# {title}\n")]
    assert len(found) == 1, title
    thing: Object = yaml.safe_load(found[0])
    return thing


class TestMigrationFromKubeAI:
    def test_load_balancing_block_is_unchanged(self) -> None:
        before, after = migration("before"), migration("after: models.yaml")["models"][0]
        assert after["loadBalancing"] == before["spec"]["loadBalancing"]
        assert after["name"] == before["metadata"]["name"]
        assert after["adapters"] == [one["name"] for one in before["spec"]["adapters"]]

    def test_load_balancing_block_has_our_defaults(self) -> None:
        block = migration("before")["spec"]["loadBalancing"]["prefixHash"]
        assert PrefixHashSpec.model_validate(block) == PrefixHashSpec()

    def test_service_selects_the_models_pods_and_has_the_port(self) -> None:
        before, service = migration("before"), migration("after: vllm-llama.yaml")
        assert service["spec"]["selector"]["model"] == before["metadata"]["name"]
        named = migration("after: models.yaml")["models"][0]["service"]
        assert (named["namespace"], named["name"]) == (
            service["metadata"]["namespace"],
            service["metadata"]["name"],
        )
        assert named["port"] in {port["name"] for port in service["spec"]["ports"]}

    def test_kustomization_builds_in_kubeais_namespace(self, tmp_path: Path) -> None:
        document = next(models_documents(MIGRATION))
        patch = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "extproc-models"},
            "data": {"models.yaml": document},
        }
        resources = next(b for b in blocks(MIGRATION, "yaml") if b.startswith("resources:"))
        (tmp_path / "manifests").symlink_to(ROOT / "manifests")
        service = migration("after: vllm-llama.yaml")
        (tmp_path / "vllm-llama.yaml").write_text(yaml.safe_dump(service))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": service["metadata"]["namespace"],
            "patches": [{"patch": yaml.safe_dump(patch)}],
            **yaml.safe_load(resources),
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        things = list(yaml.safe_load_all(kustomize(tmp_path)))
        assert {thing["metadata"]["namespace"] for thing in things} == {"kubeai"}
        data: dict[str, str] = {}
        for thing in things:
            data |= thing["data"] if thing["kind"] == "ConfigMap" else {}
        assert data["models.yaml"] == document
        assert f"address: {service['metadata']['name']}," in data["envoy.yaml"]
