"""Requests over real sockets, to servers with valid and invalid responses."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import trustme

from extproc.lab.load import exchange as exchanges
from extproc.lab.load import sse
from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.exchange import Exchange
from extproc.lab.load.http_stream import Connection
from extproc.lab.load.pool import Pool, tls_context
from extproc.lab.load.response import Response, Usage
from extproc.lab.load.shares import RequestOptions
from extproc.lab.load.target import Target, TargetError, reachable_addresses
from extproc.lab.stack.processes import free_port
from tests.extent import PATIENCE

if TYPE_CHECKING:
    from tests.lab.load.conftest import Serve

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"word "}}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


GOOD = CHUNKED + b"".join(chunk(one) for one in (ROLE, TOKEN, TOKEN, USAGE, DONE)) + END

Respond = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def saying(*pieces: bytes, pause: float = 0.005) -> Respond:
    """Write pieces with pauses, so that the client reads them one by one."""

    async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return respond


def closing(*pieces: bytes) -> Respond:
    async def respond(body: bytes, writer: asyncio.StreamWriter) -> None:
        await saying(*pieces)(body, writer)
        writer.close()

    return respond


def resetting(*pieces: bytes) -> Respond:
    async def respond(body: bytes, writer: asyncio.StreamWriter) -> None:
        await saying(*pieces)(body, writer)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    return respond


@asynccontextmanager
async def pool_to(port: int, timeout: float = 5.0, keep_alive: bool = True) -> AsyncIterator[Pool]:
    target = Target(False, "127.0.0.1", port, addresses=("127.0.0.1",))
    pool = Pool(RequestOptions(target, BodyOptions("m", "chat"), timeout, keep_alive))
    looking = asyncio.create_task(pool.check_timeouts())
    yield pool
    looking.cancel()
    pool.close()


async def ask(pool: Pool, body: bytes = b"{}") -> Exchange:
    over = asyncio.get_running_loop().create_future()
    exchange = Exchange(Response("chat", keep=True), over)
    async with asyncio.timeout(PATIENCE):
        await pool.ask(lambda: body, exchange)
    return exchange


async def asked(serve: Serve, respond: Respond, timeout: float = 5.0) -> Exchange:
    server = await serve(respond)
    async with pool_to(server.port, timeout) as pool:
        return await ask(pool)


def check_good(exchange: Exchange) -> None:
    assert exchange.failure is None
    answer = exchange.answer
    assert (answer.tokens, answer.usage, answer.text()) == (2, Usage(9, 2, 4), "word word ")
    assert 0 < exchange.sent <= answer.first <= answer.last


class TestResponse:
    async def test_reads_a_chunked_stream(self, serve: Serve) -> None:
        exchange = await asked(serve, saying(GOOD))
        check_good(exchange)
        assert exchange.streamed

    async def test_reads_single_bytes(self, serve: Serve) -> None:
        pieces = [GOOD[at : at + 1] for at in range(len(GOOD))]
        check_good(await asked(serve, saying(*pieces, pause=0)))

    @pytest.mark.parametrize("size", [7, 40, 100, 333])
    async def test_reads_pieces_of_any_size(self, serve: Serve, size: int) -> None:
        pieces = [GOOD[at : at + size] for at in range(0, len(GOOD), size)]
        check_good(await asked(serve, saying(*pieces, pause=0.001)))

    async def test_takes_times_from_the_reads(self, serve: Serve) -> None:
        pieces = (CHUNKED + chunk(ROLE), chunk(TOKEN), chunk(TOKEN), chunk(USAGE + DONE) + END)
        exchange = await asked(serve, saying(*pieces, pause=0.2))
        check_good(exchange)
        assert exchange.answer.first - exchange.sent > 0.1, "the role is no token"
        assert exchange.answer.gaps[0] > 0.1

    async def test_reads_a_stream_with_a_content_length(self, serve: Serve) -> None:
        body = ROLE + TOKEN + TOKEN + USAGE + DONE
        head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
        check_good(await asked(serve, saying(head + body)))

    async def test_reads_until_the_connection_ends(self, serve: Serve) -> None:
        body = ROLE + TOKEN + TOKEN + USAGE + DONE
        check_good(await asked(serve, closing(HEAD + b"\r\n" + body)))

    async def test_skips_a_provisional_response(self, serve: Serve) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
        check_good(await asked(serve, saying(hints, GOOD)))

    async def test_reads_a_response_without_streaming(self, serve: Serve) -> None:
        body = json.dumps({"choices": [{"message": {"content": "all"}}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        exchange = await asked(serve, saying(head % len(body) + body))
        assert exchange.failure is None
        assert not exchange.streamed
        assert exchange.answer.text() == "all"

    async def test_names_the_endpoint(self, serve: Serve) -> None:
        named = GOOD.replace(b"content-type", b"X-Served-By: 10.0.0.1:8000\r\ncontent-type", 1)
        assert (await asked(serve, saying(named))).endpoint == "10.0.0.1:8000"


class TestFailures:
    async def test_refused_connection(self) -> None:
        async with pool_to(free_port()) as pool:
            exchange = await ask(pool)
        assert exchange.failure is not None
        assert exchange.failure.kind == "connection refused"
        assert exchange.sent > 0

    @pytest.mark.parametrize(
        ("respond", "kind", "message"),
        [
            (closing(), "connection closed", "before the response"),
            (resetting(), "connection reset", "reset"),
            (closing(CHUNKED + chunk(TOKEN)), "cut off", "after 1 events"),
            (resetting(CHUNKED + chunk(TOKEN)), "cut off", "reset"),
            (closing(GOOD[: -len(END)]), "cut off", "after 2 events"),
            (closing(HEAD + b"\r\n" + TOKEN), "cut off", "[DONE]"),
            (saying(CHUNKED + chunk(TOKEN) + END), "cut off", "[DONE]"),
            (saying(CHUNKED + chunk(ROLE + DONE) + END), "no token", ""),
            (saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "not HTTP", ""),
            (saying(CHUNKED + b"zz\r\n"), "not HTTP", ""),
            (saying(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
             "not HTTP", ""),
            (saying(CHUNKED + chunk(b'data: {"error":{"message":"died"}}\n\n' + DONE) + END),
             "an error in the stream", "died"),
        ],
    )  # fmt: skip
    async def test_kind_and_message(
        self, serve: Serve, respond: Respond, kind: str, message: str
    ) -> None:
        failure = (await asked(serve, respond, timeout=1)).failure
        assert failure is not None
        assert failure.kind == kind
        assert message in failure.message

    @pytest.mark.parametrize(
        ("status", "body", "message"),
        [
            (b"503 Service Unavailable", b'{"error":{"message":"no ready endpoint"}}',
             "no ready endpoint"),
            (b"404 Not Found", b'{"object":"error","message":"no model"}', "no model"),
            (b"502 Bad Gateway", b"<html>\r\nupstream\x00 error" + b"!" * 999, "<html> upstream"),
            (b"429 Too Many Requests", b"", ""),
            (b"307 Temporary Redirect", b"", ""),
        ],
    )  # fmt: skip
    async def test_error_status(
        self, serve: Serve, status: bytes, body: bytes, message: str
    ) -> None:
        answer = b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
        failure = (await asked(serve, saying(answer))).failure
        assert failure is not None
        assert failure.kind == f"HTTP {status[:3].decode()}"
        assert failure.message.startswith(message)
        assert len(failure.message) <= 4_000

    @pytest.mark.parametrize("before", [b"", CHUNKED, CHUNKED + chunk(TOKEN)])
    async def test_timeout_of_a_silent_server(self, serve: Serve, before: bytes) -> None:
        failure = (await asked(serve, saying(before, pause=3), timeout=0.3)).failure
        assert failure is not None
        assert failure.kind == "timeout"

    async def test_no_timeout_of_a_slow_server(self, serve: Serve) -> None:
        pieces = [CHUNKED, *[chunk(TOKEN)] * 5, chunk(USAGE + DONE) + END]
        exchange = await asked(serve, saying(*pieces, pause=0.25), timeout=1)
        assert exchange.failure is None

    async def test_endless_response(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
        failure = (await asked(serve, saying(CHUNKED + chunk(b"data: " + b"x" * 2_000)))).failure
        assert failure is not None
        assert failure.message == "an event of more than 1000 bytes"
        monkeypatch.setattr(exchanges, "_MAX_BODY_BYTES", 1_000)
        endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2_000
        failure = (await asked(serve, saying(endless))).failure
        assert failure is not None
        assert failure.message == "the response has more than 1000 bytes"


class TestConnections:
    async def test_are_reused(self, serve: Serve) -> None:
        server = await serve(saying(GOOD))
        async with pool_to(server.port) as pool:
            for _ in range(3):
                check_good(await ask(pool))
            await asyncio.gather(*(ask(pool) for _ in range(4)))
        assert server.connections == pool.connections == 4
        assert len(server.bodies) == 7

    async def test_are_not_reused_without_keep_alive(self, serve: Serve) -> None:
        server = await serve(saying(GOOD))
        async with pool_to(server.port, keep_alive=False) as pool:
            for _ in range(3):
                check_good(await ask(pool))
        assert server.connections == 3

    async def test_are_not_reused_after_connection_close(self, serve: Serve) -> None:
        last = GOOD.replace(b"content-type", b"connection: close\r\ncontent-type", 1)
        server = await serve(saying(last))
        async with pool_to(server.port) as pool:
            for _ in range(2):
                check_good(await ask(pool))
        assert server.connections == 2

    async def test_are_replaced_if_stale(self, serve: Serve) -> None:
        """The server closes the connection while the next request is sent."""
        server = await serve(saying(GOOD))
        async with pool_to(server.port) as pool:
            check_good(await ask(pool))

            async def close_the_first(body: bytes, writer: asyncio.StreamWriter) -> None:
                server.respond = saying(GOOD)
                writer.close()

            server.respond = close_the_first
            exchange = await ask(pool, b'{"a": 1}')
            check_good(exchange)
        assert pool.retried == 1
        assert server.bodies[-2:] == [b'{"a": 1}'] * 2

    async def test_fail_a_request_if_closed_at_once(self) -> None:
        connection = Connection(memoryview(bytearray(10)), frozenset(), lambda _: None)
        transport = Mock(is_closing=lambda: True)
        connection.connection_made(transport)
        connection.connection_lost(None)
        exchange = Exchange(Response("chat", False), asyncio.get_running_loop().create_future())
        connection.send(b"", exchange)
        assert exchange.failure is not None
        assert exchange.failure.kind == "connection closed"
        assert not transport.write.called

    async def test_are_not_reused_if_closed_while_idle(self, serve: Serve) -> None:
        server = await serve(saying(GOOD))
        server.respond = closing(GOOD)
        async with pool_to(server.port) as pool:
            check_good(await ask(pool))
            await asyncio.sleep(0.1)
            check_good(await ask(pool))
        assert pool.retried == 0

    async def test_are_not_reused_after_data_without_a_request(self, serve: Serve) -> None:
        server = await serve(saying(GOOD + GOOD))
        async with pool_to(server.port) as pool:
            check_good(await ask(pool))
            await asyncio.sleep(0.05)
            check_good(await ask(pool))
        assert server.connections == 2

    async def test_are_closed_by_a_cancelled_request(self, serve: Serve) -> None:
        closed = asyncio.Event()

        async def respond(_: bytes, writer: asyncio.StreamWriter) -> None:
            writer.write(CHUNKED)
            with suppress(ConnectionError):
                while not writer.transport.is_closing():
                    writer.write(chunk(TOKEN))
                    await writer.drain()
                    await asyncio.sleep(0.01)
            closed.set()

        server = await serve(respond)
        async with pool_to(server.port) as pool:
            options = asyncio.create_task(ask(pool))
            await asyncio.sleep(0.1)
            options.cancel()
            async with asyncio.timeout(PATIENCE):
                await closed.wait()

    async def test_are_opened_at_most_64_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        making = most = 0

        async def connect(_: Pool) -> None:
            nonlocal making, most
            making += 1
            most = max(most, making)
            await asyncio.sleep(0.01)
            making -= 1
            raise ConnectionRefusedError(111, "Connection refused")

        monkeypatch.setattr(Pool, "_connect", connect)
        async with pool_to(1) as pool:
            await asyncio.gather(*(ask(pool) for _ in range(200)))
        assert most == 64


async def test_request_is_valid_http(serve: Serve) -> None:
    server = await serve(saying(GOOD))
    target = Target(
        False, "127.0.0.1", server.port, "/base", {"authorization": "Bearer k"}, ("127.0.0.1",)
    )
    pool = Pool(RequestOptions(target, BodyOptions("m", "chat")))
    check_good(await ask(pool, b'{"model": "m"}'))
    pool.close()
    first, *headers = server.heads[0].decode().strip().split("\r\n")
    assert first == "POST /base/v1/chat/completions HTTP/1.1"
    found_headers = dict(line.split(": ", 1) for line in headers)
    assert found_headers["host"] == f"127.0.0.1:{server.port}"
    assert found_headers["content-length"] == "14"
    assert found_headers["authorization"] == "Bearer k"


async def test_https(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server = await serve(saying(GOOD), context)
    target = Target(True, "localhost", server.port, addresses=("127.0.0.1",))

    with pytest.raises(TargetError, match="CERTIFICATE_VERIFY_FAILED"):
        await asyncio.to_thread(reachable_addresses, target, 5, tls_context())
    pool = Pool(RequestOptions(target, BodyOptions("m", "chat")))
    refused = await ask(pool)
    assert refused.failure is not None
    assert refused.failure.kind == "TLS"

    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    assert "127.0.0.1" in await asyncio.to_thread(reachable_addresses, target, 5, tls_context())
    pool = Pool(RequestOptions(target, BodyOptions("m", "chat")))
    check_good(await ask(pool))
    check_good(await ask(pool))
    assert pool.connections == 1
    pool.close()
