"""The server of the admin port: its addresses, the limits of its connections, and its log."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web

from extproc.adapters.observability.log_sampler import BURST
from extproc.adapters.observability.logs import _Text
from extproc.edge import admin_connection, admin_server
from extproc.edge.admin_server import AdminServer
from extproc.edge.listening import CannotListen
from tests.extent import PATIENCE

HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_BODY = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
LONG = 1e6
"""Seconds that no test waits."""

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def app() -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    async def body(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def broken(request: web.Request) -> web.Response:
        raise RuntimeError(request.headers["authorization"])

    made = web.Application()
    made.router.add_get("/healthz", healthz)
    made.router.add_get("/large", large)
    made.router.add_post("/body", body)
    made.router.add_get("/broken", broken)
    return made


@pytest.fixture
async def server() -> AsyncIterator[AdminServer]:
    server = AdminServer(app())
    await server.start("127.0.0.1:0")
    yield server
    await server.stop()


async def connect(server: AdminServer, said: bytes = b"") -> Peer:
    """Open a connection and send these bytes."""
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(said)
    return reader, writer


async def ended(peer: Peer) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await peer[0].read()
        except ConnectionResetError:
            return b""


async def answer(peer: Peer) -> bytes:
    async with asyncio.timeout(PATIENCE):
        return await peer[0].readuntil(b"ok\n")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)


async def test_serves_on_a_unix_socket(tmp_path: Path) -> None:
    server = AdminServer(app())
    await server.start(f"unix:{tmp_path}/admin.sock")
    connector = aiohttp.UnixConnector(f"{tmp_path}/admin.sock")
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://admin/healthz") as response,
    ):
        assert await response.text() == "ok\n"
    await server.stop()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0"])
async def test_serves_on_host_and_port(address: str) -> None:
    server = AdminServer(app())
    try:
        await server.start(address)
    except OSError:
        if "::" not in address:
            raise
        pytest.skip("this machine has no IPv6")
    host, port = server.sockets[0].getsockname()[:2]
    literal = f"[{host}]" if ":" in host else host
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{literal}:{port}/healthz") as response,
    ):
        assert response.status == 200
    await server.stop()


async def test_port_in_use_is_refused(server: AdminServer) -> None:
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    second = AdminServer(app())
    with pytest.raises(CannotListen, match=f"cannot listen on {address}: Address already in use"):
        await second.start(address)
    await second.stop()


async def test_socket_of_another_sidecar_is_refused(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/admin.sock"
    first, second = AdminServer(app()), AdminServer(app())
    await first.start(address)
    with pytest.raises(CannotListen, match="Address already in use"):
        await second.start(address)
    await second.stop()
    connector = aiohttp.UnixConnector(f"{tmp_path}/admin.sock")
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://admin/healthz") as response,
    ):
        assert response.status == 200
    await first.stop()


async def test_socket_of_an_ended_sidecar_is_replaced(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/admin.sock"
    for _ in range(2):
        server = AdminServer(app())
        await server.start(address)
        await server.stop()


def test_limits_hold_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(admin_server, "MOST_CONNECTIONS", 3)

    async def scene() -> None:
        server = AdminServer(app())
        await server.start("127.0.0.1:0")
        silent = [await connect(server) for _ in range(10)]
        for peer in silent:
            assert await ended(peer) == b""
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", LONG)
        peer = await connect(server, HEALTHZ)
        assert b"200" in await answer(peer)
        unfinished = await connect(server, HALF_BODY)
        await until(lambda: len(server.connections) == 2)
        await server.stop()
        assert await ended(peer) == await ended(unfinished) == b""

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


class TestStop:
    @pytest.mark.parametrize("said", [b"", b"GET /healthz HTT", HEALTHZ, HALF_BODY])
    async def test_does_not_wait_for_clients(
        self, said: bytes, server: AdminServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", LONG)
        monkeypatch.setattr(server._runner, "_shutdown_timeout", 0.01)
        peer = await connect(server, said)
        await until(lambda: len(server.connections) == 1)
        async with asyncio.timeout(PATIENCE):
            await server.stop()
        assert not server.connections
        await ended(peer)

    def test_takes_few_seconds(self) -> None:
        assert admin_server._STOP_SECONDS <= 1


class TestTimeLimits:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", 0.05)
        monkeypatch.setattr(admin_connection, "IDLE_SECONDS", LONG)

    @pytest.mark.parametrize("said", [b"", b"GET /healthz HTT", HALF_BODY])
    async def test_connection_without_a_whole_request_is_closed(
        self, said: bytes, server: AdminServer
    ) -> None:
        assert await ended(await connect(server, said)) == b""
        await until(lambda: not server.connections)

    async def test_connection_that_does_not_read_its_response_is_closed(
        self, server: AdminServer
    ) -> None:
        _, writer = await connect(server)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: len(server.connections) == 1)
        await until(lambda: not server.connections)
        writer.close()

    async def test_idle_connection_is_closed(
        self, server: AdminServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", LONG)
        monkeypatch.setattr(admin_connection, "IDLE_SECONDS", 0.05)
        assert (await ended(await connect(server, HEALTHZ))).endswith(b"ok\n")
        await until(lambda: not server.connections)

    async def test_next_request_has_a_limit_of_its_own(
        self, server: AdminServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", LONG)
        peer = await connect(server, HEALTHZ)
        await answer(peer)
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", 0.05)
        peer[1].write(HEALTHZ[:10])
        assert await ended(peer) == b""


class TestNumberOfConnections:
    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admin_connection, "REQUEST_SECONDS", LONG)
        monkeypatch.setattr(admin_server, "MOST_CONNECTIONS", 3)

    async def test_silent_connections_do_not_lock_out_probes(self, server: AdminServer) -> None:
        silent = [await connect(server) for _ in range(10)]
        await until(lambda: len(server.connections) == 3)
        assert b"200" in await answer(await connect(server, HEALTHZ))
        assert len(server.connections) == 3
        for peer in silent[:7]:
            assert await ended(peer) == b""

    async def test_the_one_that_waited_longest_goes_first(self, server: AdminServer) -> None:
        first = await connect(server, HEALTHZ)
        await answer(first)
        second = await connect(server)
        await until(lambda: len(server.connections) == 2)
        third = await connect(server)
        await until(lambda: len(server.connections) == 3)
        first[1].write(HEALTHZ)
        await answer(first)
        await answer(await connect(server, HEALTHZ))
        assert await ended(second) == b""
        first[1].write(HEALTHZ)
        assert await answer(first), "it has sent a request since"
        third[1].close()

    def test_depends_on_the_open_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        for files, most in ((64, 8), (256, 32), (1 << 20, 128), (resource.RLIM_INFINITY, 128)):
            monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
            assert admin_server._most_connections() == most


class TestLog:
    @pytest.fixture
    def logged(self, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
        caplog.set_level(logging.DEBUG, "extproc.admin")
        return lambda: "\n".join(map(_Text().format, caplog.records))

    async def test_malformed_requests_are_sampled_without_their_content(
        self, server: AdminServer, logged: Callable[[], str]
    ) -> None:
        bad = b"GET / HTTP/1.1\r\nAuthorization: Bearer secret\r\nb\x00d: 1\r\n\r\n"
        for _ in range(BURST + 3):
            assert b" 400 " in await ended(await connect(server, bad))
        lines = logged().splitlines()
        assert len(lines) == BURST
        assert all("INFO malformed admin request error=" in line for line in lines)
        assert "secret" not in logged()

    async def test_other_protocol_is_malformed(
        self, server: AdminServer, logged: Callable[[], str]
    ) -> None:
        await ended(await connect(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"))
        (line,) = logged().splitlines()
        assert line.endswith("malformed admin request error=BadHttpMethod")

    async def test_failed_handler_is_logged_without_its_message(
        self, server: AdminServer, logged: Callable[[], str]
    ) -> None:
        peer = await connect(server, b"GET /broken HTTP/1.0\r\nAuthorization: secret\r\n\r\n")
        assert b" 500 " in await ended(peer)
        assert "ERROR admin request failed error=RuntimeError traceback=" in logged()
        assert "secret" not in logged()
