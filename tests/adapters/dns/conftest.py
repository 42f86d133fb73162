from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.adapters.dns.server import DnsServer


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    server = await DnsServer().start()
    yield server
    await server.stop()
