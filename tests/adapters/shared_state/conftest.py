"""Fixtures: a Valkey that tests of this directory share, and one for each test that harms it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from extproc.lab.stack.valkey import Valkey


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    valkey = Valkey(tmp_path_factory.mktemp("valkey"))
    asyncio.run(valkey.start())
    yield valkey
    asyncio.run(valkey.kill())


@pytest.fixture
async def valkey(_running: Valkey) -> Valkey:
    """Return the shared server, which is empty."""
    await _running.call("FLUSHALL")
    return _running


@pytest.fixture
async def own_valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """Return a server that the test may stop."""
    valkey = Valkey(tmp_path)
    await valkey.start()
    yield valkey
    await valkey.kill()
