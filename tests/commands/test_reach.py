"""The command `extproc reach`, against a real sidecar."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.cli import main
from extproc.commands.reach import models_by_endpoint
from extproc.lab.stack.processes import free_port
from tests.commands.running import refused
from tests.e2e.forked import ForkedFileSidecar

Capture = pytest.CaptureFixture[str]


def listening(backlog: int) -> socket.socket:
    """Return a socket that listens on a free loopback port."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(backlog)
    return server


@pytest.fixture
def open_server() -> Iterator[str]:
    """The address of a server that accepts connections."""
    with listening(100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server whose queue is full, so that packets are dropped."""
    with listening(0) as server:
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for client in waiting:
            client.close()


@asynccontextmanager
async def running(directory: Path, models: Mapping[str, list[str]]) -> AsyncIterator[str]:
    """Run a sidecar with endpoints by model. Yield its admin address."""
    document = {"models": [{"name": name, "endpoints": models[name]} for name in models]}
    sidecar = ForkedFileSidecar(document, directory)
    try:
        await sidecar.start()
        yield sidecar.admin.removeprefix("http://")
    finally:
        await sidecar.kill()


async def reach(admin: str, timeout: str) -> int:
    """Run the command in a thread, because it has an event loop of its own."""
    return await asyncio.to_thread(main, ["reach", "--admin", admin, "--timeout", timeout])


async def test_names_endpoints_that_cannot_be_reached_and_the_likely_cause(
    tmp_path: Path, open_server: str, silent_server: str, capsys: Capture
) -> None:
    closed = f"127.0.0.1:{free_port()}"
    models = {"good": [open_server], "bad": [open_server, silent_server, closed]}
    async with running(tmp_path, models) as admin:
        assert await reach(admin, "0.2") == 1
    captured = capsys.readouterr()
    assert captured.out == "1 of 3 endpoints accept connections\n"
    assert sorted(captured.err.splitlines()) == sorted(
        [
            f"bad: {closed}: connection refused",
            f"bad: {silent_server}: no connection within 0.2 s; does a NetworkPolicy allow it?",
        ]
    )


async def test_succeeds_if_all_endpoints_can_be_reached(
    tmp_path: Path, open_server: str, capsys: Capture
) -> None:
    async with running(tmp_path, {"good": [open_server], "same": [open_server]}) as admin:
        assert await reach(admin, "5") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("1 of 1 endpoints accept connections\n", "")


def test_leaves_out_endpoints_that_have_left() -> None:
    states = {"a:1": "ready", "b:1": "ejected", "c:1": "draining"}
    endpoints = [{"address": address, "state": state} for address, state in states.items()]
    found = models_by_endpoint({"m": {"endpoints": endpoints}, "n": {"endpoints": endpoints[:1]}})
    assert found == {"a:1": ["m", "n"], "b:1": ["m"]}


def test_says_if_no_sidecar_responds(capsys: Capture) -> None:
    assert main(["reach", "--admin", f"127.0.0.1:{free_port()}"]) == 2
    assert "no sidecar responds at 127.0.0.1:" in capsys.readouterr().err


def test_refuses_an_address_without_a_port(capsys: Capture) -> None:
    assert "'here' is neither HOST:PORT nor unix:PATH" in refused(
        capsys, "reach", "--admin", "here"
    )
