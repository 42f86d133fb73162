"""manifests/compose: Envoy, the sidecar and two stand-ins in Docker Compose."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml

from extproc import __version__
from extproc.adapters.configuration.document import parse
from extproc.cli import main, parsers
from extproc.lab.stack.envoy import envoy_binary
from extproc.lab.stand_ins import arguments as stand_in

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "manifests" / "compose"
SCHEMA = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Json:
    loaded: Json = yaml.safe_load((DIRECTORY / "compose.yaml").read_text())
    return loaded


def test_conforms_to_the_compose_specification(compose: Json) -> None:
    jsonschema.validate(compose, json.loads(SCHEMA.read_text()))


def test_sidecar_accepts_its_command(compose: Json) -> None:
    command, *given = compose["services"]["extproc"]["command"]
    parsed = parsers()[command].parse_args(given)
    mounted = compose["services"]["extproc"]["volumes"][0].split(":")
    assert str(parsed.models) == mounted[1]
    assert (DIRECTORY / mounted[0]).is_file()


def test_stand_ins_accept_their_command(compose: Json) -> None:
    settings = stand_in.parse(compose["services"]["stand-in-a"]["command"])
    assert settings.ports == (8000,)
    assert settings.models == ("llama",)


def test_models_document_names_the_stand_ins(compose: Json) -> None:
    (model,) = parse((DIRECTORY / "models.yaml").read_bytes()).models
    assert model.endpoints is not None
    assert [one.partition(":")[0] for one in model.endpoints] == ["stand-in-a", "stand-in-b"]
    assert set(compose["services"]) >= {"stand-in-a", "stand-in-b"}


def test_envoy_accepts_the_printed_configuration(
    compose: Json, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = compose["services"]["envoy-config"]["command"]
    program, *given = shlex.split(line)
    assert program == "extproc"
    assert given[-2:] == [">", "/config/envoy.yaml"]
    assert main(given[:-2]) == 0
    config = tmp_path / "envoy.yaml"
    config.write_text(capsys.readouterr().out)
    assert "address: stand-in-b" in config.read_text()
    subprocess.run(
        [envoy_binary(), "--mode", "validate", "-c", str(config)], check=True, capture_output=True
    )


def test_published_ports_are_those_of_envoy_and_the_sidecar(compose: Json) -> None:
    ports = compose["services"]["envoy"]["ports"]
    assert ports == ["127.0.0.1:8080:8080", "127.0.0.1:9090:9090"]
    assert compose["services"]["extproc"]["network_mode"] == "service:envoy"


def test_images_have_the_current_version(compose: Json) -> None:
    for name in ("extproc", "envoy-config"):
        assert compose["services"][name]["image"] == f"extproc:{__version__}"


def test_stand_ins_dockerfile_copies_what_its_ignore_file_allows() -> None:
    ignored = (DIRECTORY / "stand-in.Dockerfile.dockerignore").read_text()
    assert "extproc/lab" not in ignored
    for line in (DIRECTORY / "stand-in.Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    (base, *_) = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert f"FROM {base}" in (DIRECTORY / "stand-in.Dockerfile").read_text()


def test_stand_in_runs_as_a_module() -> None:
    help_ = [sys.executable, "-m", "extproc.lab.stand_ins.vllm", "--help"]
    assert subprocess.run(help_, capture_output=True, check=True).stdout
