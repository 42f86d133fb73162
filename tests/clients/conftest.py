"""One stack for each module: real Envoy with the shipped configuration, sidecar and stand-ins.

A module's `OPTIONS` are the differences between its stack and the recommended one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.clients import sdks
from tests.clients.sdk import claude, client
from tests.e2e.scene import Options, Scene
from tests.e2e.stacks import start_scene

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """The stack of the module."""
    options = getattr(request.module, "OPTIONS", Options())
    async with AsyncExitStack() as cleanup:
        yield await start_scene(options, tmp_path_factory.mktemp("scene"), cleanup)


@pytest.fixture(scope="module")
def gpt(scene: Scene) -> Iterator[sdks.openai.OpenAI]:
    """OpenAI's SDK without retries."""
    with client(scene) as made:
        yield made


@pytest.fixture(scope="module")
def sonnet(scene: Scene) -> Iterator[sdks.anthropic.Anthropic]:
    """Anthropic's SDK without retries."""
    with claude(scene) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def no_foreign_hosts() -> Iterator[None]:
    """Fail a module if its clients look up another host, for telemetry or price lists."""
    looked_up: list[str] = []
    resolve = socket.getaddrinfo

    def resolve_here(host: Any, *arguments: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in LOOPBACK:
            looked_up.append(name)
            raise socket.gaierror(socket.EAI_NONAME, "only loopback is allowed in these tests")
        return resolve(host, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolve_here)
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield
    assert not looked_up
