"""Fixtures of the tests in this directory."""

from __future__ import annotations

import pytest

from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.kubernetes.reflector.scenes import ConfigMaps


@pytest.fixture
def maps(server: StandInApiServer, namespace: str) -> ConfigMaps:
    return ConfigMaps(server, namespace)
