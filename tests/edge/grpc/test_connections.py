"""The connections of the fast transport: turns, limits, idle connections, and cleanup.

The tests run on both event loops, and with and without TLS where that matters.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import ssl
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
import uvloop

from extproc.edge.grpc import fast_server, socket_connection
from extproc.edge.grpc.connection import GrpcConnection
from extproc.edge.grpc.fast_server import FastServer
from extproc.edge.grpc.socket_connection import READ_BYTES, SocketConnection
from extproc.edge.http2 import Http2Connection
from extproc.edge.tls import KeyPair
from tests.edge.http2 import wire
from tests.edge.streams import Sidecar
from tests.extent import PATIENCE

CA = trustme.CA()
GREETING = wire.PREFACE + wire.settings() + wire.SETTINGS_ACK
CALL = wire.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\x20" + wire.block())

Scene = Callable[["Server"], Awaitable[None]]
Play = Callable[[Scene], None]


class Server:
    """A fast server on a free port, and its clients."""

    def __init__(self, server: FastServer, context: ssl.SSLContext | None) -> None:
        self.server = server
        self.context = context
        assert server._listener is not None
        (listening,) = server._listener.sockets
        self.port = listening.getsockname()[1]

    async def connect(self, *said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection and send these bytes."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=self.context,
            server_hostname="127.0.0.1" if self.context else None,
        )
        writer.write(b"".join(said))
        await writer.drain()
        return reader, writer

    @property
    def connections(self) -> list[SocketConnection]:
        return list(self.server._connections)

    async def has(self, number: int) -> None:
        """Wait until the server has this number of connections."""
        async with asyncio.timeout(PATIENCE):
            while len(self.server._connections) != number:
                await asyncio.sleep(0.005)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


@pytest.fixture(params=["plain", "TLS"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> KeyPair | None:
    if request.param == "plain":
        return None
    issued = CA.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    return KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")


@pytest.fixture
def play(loop_factory: Callable[[], asyncio.AbstractEventLoop], pair: KeyPair | None) -> Play:
    """Run a test with a server on the chosen event loop."""

    async def run(scene: Scene) -> None:
        server = FastServer(Sidecar().processor, pair)
        await server.start("127.0.0.1:0")
        context = None
        if pair is not None:
            context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
        try:
            await scene(Server(server, context))
        finally:
            await server.stop(0)

    def in_a_loop(scene: Scene) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(asyncio.wait_for(run(scene), 60))

    return in_a_loop


def test_connection_that_sends_constantly_is_read_in_turns_with_others(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count the reads of a full connection before others are read, when all are ready."""
    order: list[str] = []
    names: dict[int, str] = {}
    updated = SocketConnection.buffer_updated

    def noting(self: SocketConnection, nbytes: int) -> None:
        order.append(names.setdefault(id(self), "quiet" if nbytes < 100 else "loud"))
        updated(self, nbytes)

    async def scene() -> None:
        server = FastServer(Sidecar().processor)
        loud, their_loud = socket.socketpair()
        quiet, their_quiet = socket.socketpair()
        for one in (loud, quiet, their_loud, their_quiet):
            one.setblocking(False)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                one.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        for theirs in (their_loud, their_quiet):
            server._accepted(theirs)
        monkeypatch.setattr(SocketConnection, "buffer_updated", noting)
        async with asyncio.timeout(PATIENCE):
            while not all(known._transport for known in server._connections):
                await asyncio.sleep(0)
        # Nothing is read before this function waits, and by then all of it is ready.
        flood = GREETING + wire.frame(0xEE, 0, 0, bytes(16_000)) * 100
        assert loud.send(flood) > 3 * READ_BYTES
        quiet.send(wire.PREFACE)
        async with asyncio.timeout(PATIENCE):
            while "quiet" not in order or order.count("loud") < 4:
                await asyncio.sleep(0)
        for known in list(server._connections):
            known.abort()
        loud.close()
        quiet.close()
        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scene())
    assert order.index("quiet") <= 2


def test_closed_connections_are_freed_without_the_collector(play: Play) -> None:
    def alive() -> Counter[str]:
        kinds = (SocketConnection, GrpcConnection, Http2Connection)
        return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, kinds))

    async def scene(server: Server) -> None:
        await server.server.set_serving(True)
        gone: list[weakref.ref[SocketConnection]] = []
        for how in ("closed", "reset", "cut off"):
            reader, writer = await server.connect(GREETING, CALL)
            await server.has(1)
            gone.append(weakref.ref(server.connections[0]))
            if how == "reset":
                writer.transport.abort()
            else:
                if how == "cut off":
                    writer.write(wire.ping()[:12])
                writer.close()
            del reader, writer
            await server.has(0)
        async with asyncio.timeout(PATIENCE):
            while any(one() is not None for one in gone):
                await asyncio.sleep(0.005)
        assert alive() - before == Counter()

    gc.collect()
    before = alive()
    gc.disable()
    try:
        play(scene)
    finally:
        gc.enable()


def test_connection_without_preface_is_closed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_connection, "GREETING_SECONDS", 0.3)

    async def scene(server: Server) -> None:
        silent, _ = await server.connect()
        first_byte, _ = await server.connect(wire.PREFACE[:1])
        no_settings, _ = await server.connect(wire.PREFACE)
        _, greeted = await server.connect(GREETING)
        for reader in (silent, first_byte, no_settings):
            async with asyncio.timeout(PATIENCE):
                with suppress(OSError):  # a reset is an end, too
                    while await reader.read(1_000):
                        pass
        await server.has(1)
        assert server.connections[0].greeted
        greeted.close()

    play(scene)


def test_connection_with_unfinished_tls_handshake_is_closed(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_connection, "GREETING_SECONDS", 0.3)
    issued = CA.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")

    async def scene() -> None:
        server = FastServer(
            Sidecar().processor, KeyPair(tmp_path / "tls.crt", tmp_path / "tls.key")
        )
        await server.start("127.0.0.1:0")
        plain = Server(server, None)
        for said in (b"", b"\x16\x03\x01"):
            reader, writer = await plain.connect(said)
            await plain.has(1)
            async with asyncio.timeout(PATIENCE):
                with suppress(OSError):
                    assert await reader.read() == b""
            await plain.has(0)
            writer.close()
        await server.stop(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scene())


@pytest.mark.parametrize("most", [4])
class TestConnectionLimit:
    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        monkeypatch.setattr(fast_server, "MOST_CONNECTIONS", most)

    def test_closes_a_connection_without_preface_for_a_new_one(self, play: Play) -> None:
        async def scene(server: Server) -> None:
            kept = await server.connect(GREETING)
            silent = [await server.connect() for _ in range(3)]
            await server.has(4)
            newcomers = [await server.connect(GREETING) for _ in range(3)]
            async with asyncio.timeout(PATIENCE):
                while sum(known.greeted for known in server.connections) < 4:
                    await asyncio.sleep(0.005)
            assert len(server.connections) == 4
            for _, writer in [kept, *silent, *newcomers]:
                writer.close()

        play(scene)

    def test_closes_the_longest_idle_connection_and_none_with_a_call(self, play: Play) -> None:
        async def scene(server: Server) -> None:
            await server.server.set_serving(True)
            opened = [await server.connect(GREETING, CALL)]
            opened += [await server.connect(GREETING) for _ in range(3)]
            await server.has(4)
            async with asyncio.timeout(PATIENCE):
                while not all(known.greeted for known in server.connections):
                    await asyncio.sleep(0.005)
            busy = next(known for known in server.connections if not known.idle)
            longest_idle = min(
                (known for known in server.connections if known.idle),
                key=lambda known: known.last_received_at,
            )
            opened.append(await server.connect(GREETING))
            async with asyncio.timeout(PATIENCE):
                while longest_idle in server.connections:
                    await asyncio.sleep(0.005)
            await server.has(4)
            assert busy in server.connections
            for _, writer in opened:
                writer.close()

        play(scene)

    def test_refuses_a_new_connection_if_all_have_calls(self, play: Play) -> None:
        async def scene(server: Server) -> None:
            await server.server.set_serving(True)
            opened = [await server.connect(GREETING, CALL) for _ in range(4)]
            async with asyncio.timeout(PATIENCE):
                while sum(not known.idle for known in server.connections) < 4:
                    await asyncio.sleep(0.005)
            before = server.connections
            with suppress(OSError):
                reader, _ = await server.connect(GREETING)
                async with asyncio.timeout(PATIENCE):
                    await reader.read()
            assert server.connections == before
            for _, writer in opened:
                writer.close()

        play(scene)


def test_connections_may_use_half_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((64, 32), (1_024, 512), (1 << 20, 2_048), (resource.RLIM_INFINITY, 2_048)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert fast_server._most_connections() == most
