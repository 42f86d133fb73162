from __future__ import annotations

from pathlib import Path

import pytest

from extproc.envoy import RECOMMENDED, envoy_configuration, envoy_configurations

SHIPPED = Path(__file__).parents[1] / "envoy"


def test_a_checkout_has_all_files_of_its_envoy_directory() -> None:
    assert envoy_configurations() == sorted(SHIPPED.glob("*.yaml"))


def test_finds_a_configuration_by_its_file_name() -> None:
    assert envoy_configuration("fail-closed.yaml") == SHIPPED / "fail-closed.yaml"


def test_the_recommended_configuration_is_the_default() -> None:
    assert envoy_configuration() == SHIPPED / RECOMMENDED


@pytest.mark.parametrize("name", ["nginx.yaml", "../pyproject.toml", "", "."])
def test_refuses_an_unknown_name_and_lists_the_shipped_ones(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"there are endpoint-picker\.yaml, envoy\.yaml"):
        envoy_configuration(name)
