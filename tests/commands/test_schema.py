"""The command `extproc schema`: the JSON Schema of the models document."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from jsonschema import Draft202012Validator

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.adapters.configuration.json_schema import DIALECT, json_schema
from extproc.cli import main
from extproc.core.schema import StrategyName
from tests.test_docs import PAGES, models_documents

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "docs" / "models.schema.json"
SERVER = "name: a, endpoints: [10.0.0.1:8000]"

VALIDATOR = Draft202012Validator(json_schema())


def examples() -> Iterator[tuple[str, str]]:
    """Yield every models document of the repository, with its file.

    The Helm chart's templates have placeholders, which are no names of Kubernetes.
    """
    for page in PAGES:
        for document in models_documents(page):
            yield page.name, document
    tracked = subprocess.run(
        ["git", "ls-files", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in tracked.stdout.splitlines():
        if "helm" in name:
            continue
        text = (ROOT / name).read_text()
        if re.search(r"^models:", text, re.MULTILINE):
            yield name, text
        for indent, inner in re.findall(r"^( *)models\.yaml: \|\n((?:\1 +.*\n|\n)+)", text, re.M):
            if "{{" not in inner and "$" not in inner:
                yield name, re.sub(f"^{indent}", "", inner, flags=re.MULTILINE)


def test_models_documents_name_the_schema() -> None:
    """Editors find it by the first line. A document inside a ConfigMap cannot name it."""
    documents = {ROOT / name for name, text in examples() if re.match(r"(#.*\n)*models:", text)}
    files = [path for path in documents if path.suffix == ".yaml" and path.is_file()]
    assert ROOT / "manifests" / "compose" / "models.yaml" in files
    for path in files:
        first = path.read_text().splitlines()[0]
        schema = first.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / schema).resolve() == COMMITTED, path


def accepted_by_schema(document: str) -> bool:
    return bool(VALIDATOR.is_valid(yaml.safe_load(document)))


def accepted_by_check(document: str) -> bool:
    try:
        parse(document.encode())
    except DocumentError:
        return False
    return True


def test_command_prints_the_committed_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    current = capsys.readouterr().out == COMMITTED.read_text()
    assert current, f"{COMMITTED.name} does not match the code: run `make reference`"


def test_command_imports_no_sidecar() -> None:
    program = (
        "import sys; from extproc.cli import main; main(['schema']); "
        "sys.exit(any(one in sys.modules for one in ('extproc.app', 'aiohttp')))"
    )
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    assert run.returncode == 0


def test_schema_is_valid_json_schema() -> None:
    schema = json_schema()
    assert schema["$schema"] == DIALECT
    Draft202012Validator.check_schema(schema)


def test_every_key_has_a_description_without_links() -> None:
    mappings = [json_schema(), *json_schema()["$defs"].values()]
    keys: list[dict[str, Any]] = [key for one in mappings for key in one["properties"].values()]
    assert len(keys) > 30
    for key in keys:
        assert key["description"]
        assert "](" not in key["description"]


def test_keys_have_their_defaults_and_options() -> None:
    balancing = json_schema()["$defs"]["LoadBalancingSpec"]["properties"]
    assert balancing["strategy"]["default"] == "PrefixHash"
    assert balancing["strategy"]["enum"] == list(get_args(StrategyName))
    prefix_hash = json_schema()["$defs"]["PrefixHashSpec"]["properties"]
    assert prefix_hash["meanLoadFactor"]["minimum"] == 100


def test_accepts_every_example_in_the_repository() -> None:
    found = list(examples())
    assert len(found) >= 10
    for name, document in found:
        errors = [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(document))]
        assert not errors, name


@pytest.mark.parametrize(
    "rest",
    [
        "endpoints: ['[::1]:8000', vllm.example.com:80, A_b.local.:08000]",
        "endpoints: [], aliases: [Llama 3 \u00e9\u3042 (\U0001f600), b]",
        "endpoints: []",
        "endpoints: null, service: {namespace: n, name: s, port: '8000'}",
        "service: {namespace: n, name: s, port: 8000}",
        "endpoints: [a:1], loadBalancing: {prefixHash: {prefixSource: 'Header:X-Session'}}",
        "endpoints: [a:1], loadBalancing: {signals: {intervalSeconds: 1, idleIntervalSeconds: 1}}",
        "endpoints: [a:1], loadBalancing: {strategy: Chain, chain: [{filter: LeastQueue}]}",
    ],
)
def test_accepts_what_check_accepts(rest: str) -> None:
    document = f"models: [{{name: a, {rest}}}]"
    assert accepted_by_check(document)
    assert accepted_by_schema(document)


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "models: {}",
        "model: []",
        f"models: [{{{SERVER}}}]\nmore: 1",
        f"models: [{{{SERVER}, alias: [b]}}]",
        f"models: [{{{SERVER}, aliases: b}}]",
        f"models: [{{{SERVER}, aliases: [7]}}]",
        f"models: [{{{SERVER}, adapters: null}}]",
        f"models: [{{{SERVER}, responseIds: 'yes'}}]",
        f"models: [{{{SERVER}, servedName: ''}}]",
        f"models: [{{{SERVER}, servedName: ' b'}}]",
        f"models: [{{{SERVER}, aliases: [' ']}}]",
        f'models: [{{{SERVER}, adapters: ["b\\x1b"]}}]',
        f"models: [{{{SERVER}, load_balancing: {{}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{strategy: Best}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{strategy: prefixHash}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{replication: '256'}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{replication: 0}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{replication: 1.5}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{replication: true}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{prefixSource: First}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{prefixHash: {{prefixSource: 'Header:'}}}}}}]",
        f"models: [{{{SERVER}, loadBalancing: {{signals: {{intervalSeconds: 0}}}}}}]",
        f"models: [{{{SERVER}, service: {{namespace: n, name: s, port: 80}}}}]",
        "models: [{name: a}]",
        "models: [{endpoints: [a:1]}]",
        "models: [{name: a, endpoints: [a]}]",
        "models: [{name: a, endpoints: [http://a:1]}]",
        "models: [{name: a, service: {namespace: N, name: s, port: 80}}]",
        "models: [{name: a, service: {namespace: n, name: s}}]",
        "models: [{name: a, service: {namespace: n, name: s, port: 0}}]",
        "models: [{name: a, service: {namespace: n, name: s, port: 80, more: 1}}]",
        "models: [{name: a, split: {targets: [{model: b}]}}]",
    ],
)
def test_rejects_unknown_keys_and_wrong_values_as_check_does(document: str) -> None:
    assert not accepted_by_check(document)
    assert not accepted_by_schema(document)
