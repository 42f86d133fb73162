"""Fixtures of the tests in this directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from extproc.lab.api_server.process import StandInApiServer
from tests.adapters.configuration.config_map.scenes import Scene


@pytest.fixture
async def scene(server: StandInApiServer, namespace: str) -> AsyncIterator[Scene]:
    before = asyncio.all_tasks()
    scene = Scene(server, namespace)
    yield scene
    await scene.stop()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, "no task is left"
