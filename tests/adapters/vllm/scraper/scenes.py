"""Helpers of the tests of the scraper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from extproc.core.request.refusals import ModelNotFound
from tests.adapters.vllm.servers import Scene, Server

Start = Callable[[], Awaitable[Server]]


def known(scene: Scene, name: str) -> bool:
    """Return True if requests can use this name."""
    try:
        scene.router.resolve(name, None, {})
    except ModelNotFound:
        return False
    return True


async def hangs(writer: asyncio.StreamWriter) -> None:
    """Send nothing until the client closes."""
    while not writer.transport.is_closing():
        await asyncio.sleep(0.005)


async def closes(writer: asyncio.StreamWriter) -> None:
    writer.close()
