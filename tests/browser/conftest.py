"""A browser with the status page of a real sidecar, in front of stand-in replicas."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page

from extproc.edge.grpc.health import SERVICE
from extproc.lab.pages.browser import NO_BROWSER, browser, browser_binary
from extproc.lab.stack.processes import until
from extproc.lab.stack.sidecar import FileSidecar
from extproc.lab.stack.stand_in_fleet import StandInFleet
from tests.browser.status_page import StatusPage
from tests.e2e.forked import ForkedFileSidecar
from tests.edge.envoy import (
    Reply,
    chat_request,
    request_body,
    request_headers,
    response_headers,
)
from tests.extent import PATIENCE


class Streams:
    """Streams that Envoy has opened, without an Envoy."""

    def __init__(self, listen: str) -> None:
        self._channel = grpc.aio.insecure_channel(listen)
        self._process = self._channel.stream_stream(f"/{SERVICE}/Process")
        self.calls: list[Any] = []

    async def send(self, model: str, prompt: str, **headers: bytes) -> Any:
        """Send one request whose response does not end; return its stream without the decision."""
        call = self._process()
        self.calls.append(call)
        await call.write(request_headers(**headers))  # type: ignore[arg-type]
        await call.read()
        await call.write(request_body(chat_request(model, prompt)))
        return call

    async def open(self, model: str, prompt: str, **headers: bytes) -> Reply:
        """Send one request whose response does not end; return the decision."""
        call = await self.send(model, prompt, **headers)
        return Reply(await call.read())

    async def fail(self, model: str, prompt: str) -> str:
        """Send one request to which the endpoint responds with 503; return its address."""
        call = await self.send(model, prompt)
        endpoint = str(Reply(await call.read()).metadata["extproc"]["endpoint"])
        await call.write(response_headers({"upstream.address": endpoint}, status=b"503"))
        await call.read()
        call.cancel()
        return endpoint

    async def close(self) -> None:
        """End all streams."""
        for call in self.calls:
            call.cancel()
        await self._channel.close()


class Scene:
    """A running sidecar, the addresses of its replicas, and the streams to it."""

    def __init__(self, sidecar: FileSidecar, addresses: Sequence[str]) -> None:
        self.sidecar = sidecar
        self.addresses = addresses
        self.streams = Streams(sidecar.listen)


MakeDocument = Callable[[Sequence[str]], dict[str, Any]]
Launch = Callable[..., Awaitable[Scene]]
OpenPage = Callable[..., Awaitable[StatusPage]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def addresses(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sequence[str]]:
    """The addresses of six replicas. Sidecars read their metrics, but no request reaches them."""
    replicas = StandInFleet(6, tmp_path_factory.mktemp("replicas"))
    try:
        await replicas.start()
        yield replicas.addresses
    finally:
        await replicas.kill()


@pytest_asyncio.fixture(loop_scope="session")
async def launch(addresses: Sequence[str], tmp_path: Path) -> AsyncIterator[Launch]:
    """Return a function that starts a sidecar, by default with two models.

    `document` returns another models document for the replicas' addresses.
    """
    async with AsyncExitStack() as cleanup:

        async def start(
            arguments: Sequence[str] = (), document: MakeDocument = two_models
        ) -> Scene:
            directory = Path(tempfile.mkdtemp(dir=tmp_path))
            sidecar = ForkedFileSidecar(document(addresses), directory, arguments=arguments)
            cleanup.push_async_callback(sidecar.kill)
            await sidecar.start()
            scene = Scene(sidecar, addresses)
            cleanup.push_async_callback(scene.streams.close)
            return scene

        yield start


def two_models(addresses: Sequence[str]) -> dict[str, Any]:
    """Return a document with a PrefixHash and a PrefixCache model, which share no endpoint."""
    return {
        "models": [
            {"name": "llama", "endpoints": list(addresses[:4]), "adapters": ["sql"]},
            {
                "name": "cache",
                "endpoints": list(addresses[4:]),
                "loadBalancing": {"strategy": "PrefixCache"},
            },
        ]
    }


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[BrowserContext]:
    """A browser's context for all tests; they are skipped if none is installed.

    A context for each test would take three times the CPU time. Each sidecar has a port of its own,
    so its page finds no storage of other tests.
    """
    if browser_binary() is None:
        pytest.skip(NO_BROWSER)
    async with browser() as running:
        context = await running.new_context(viewport={"width": 1280, "height": 900})
        await context.new_page()  # keeps a process for the next page
        yield context


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(chromium: BrowserContext) -> AsyncIterator[OpenPage]:
    """Return a function that opens the page. At the end, the page must have reported no error."""
    opened: list[StatusPage] = []

    async def start(url: str, *, before: Callable[[Page], Awaitable[None]] | None = None) -> Any:
        page = await chromium.new_page()
        shown = StatusPage(page)
        opened.append(shown)
        if before is not None:
            await before(page)
        await page.goto(url)
        await shown.next_poll()
        return shown

    yield start
    for shown in opened:
        await shown.page.close()
        assert shown.errors == []


async def settled(scene: Scene, requests: int) -> None:
    """Wait until the sidecar counts this number of requests in flight."""

    async def counted() -> bool:
        return sum((await scene.sidecar.inflight()).values()) == requests

    await until(counted, PATIENCE, f"{requests} requests in flight")
