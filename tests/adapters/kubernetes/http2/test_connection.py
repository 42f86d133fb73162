"""Requests on one connection."""

from __future__ import annotations

import asyncio

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from extproc.adapters.kubernetes import http2_stream
from extproc.adapters.kubernetes.errors import MalformedResponse
from extproc.adapters.kubernetes.http2_stream import NotProcessed
from extproc.adapters.kubernetes.response import Timeouts
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.http2.peers import OK, Peer, connected, opened, request
from tests.extent import PATIENCE


class TestRequest:
    async def test_has_the_headers_of_http2(self) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request("/a?b=c")))
            await peer.until(lambda: peer.requests)
            assert peer.requests == [
                {
                    ":method": "GET",
                    ":scheme": "https",
                    ":authority": "api.example",
                    ":path": "/a?b=c",
                    "authorization": "Bearer t",
                }
            ]
            peer.respond(1, b"{", b"}")
            response = await sending
            assert (response.status, response.reason) == (200, "OK")
            assert response.header("Content-Type") == "application/json"
            assert await response.read() == b"{}"

    async def test_body_can_be_larger_than_the_windows(self) -> None:
        body = bytes(300_000)
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request(body=body)))
            await peer.until(lambda: 1 in peer.ended)
            assert peer.bodies[1] == body
            peer.respond(1)
            assert (await sending).status == 200

    async def test_response_that_precedes_the_body_is_returned(self) -> None:
        async with connected() as (connection, peer):
            peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            peer.flush()
            await eventually(lambda: connection._h2.remote_settings.initial_window_size == 0)
            sending = asyncio.create_task(connection.request(request(body=b"x")))
            await peer.until(lambda: peer.requests)
            peer.respond(1)
            response = await sending
            assert response.status == 200
            response.release()
            await peer.until(lambda: peer.resets)

    async def test_that_is_cancelled_resets_its_stream(self) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: peer.requests)
            sending.cancel()
            await peer.until(lambda: peer.resets)
            assert peer.resets == [(1, ErrorCodes.CANCEL)]
            response, _ = await opened(connection, peer, b"{}", end=True)
            assert await response.read() == b"{}", "the connection works"

    @pytest.mark.parametrize(
        "timeouts", [Timeouts(0.01, 9, 9), Timeouts(9, 0.01, 9)], ids=["total", "head"]
    )
    async def test_ends_if_no_response_begins_in_time(self, timeouts: Timeouts) -> None:
        async with connected() as (connection, peer):
            with pytest.raises(TimeoutError):
                await connection.request(request(timeouts=timeouts))
            await peer.until(lambda: peer.resets)

    async def test_beyond_the_servers_limit_needs_another_connection(self) -> None:
        async with connected() as (connection, peer):
            peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
            peer.flush()
            response, _ = await opened(connection, peer, end=True)
            assert not connection.has_room
            with pytest.raises(NotProcessed):
                await connection.request(request())
            response.release()
            assert connection.has_room


class TestResponse:
    async def test_can_be_larger_than_the_windows(self) -> None:
        body = bytes(5 * 2**20)
        async with connected() as (connection, peer):
            response, number = await opened(connection, peer)
            sending = asyncio.create_task(peer.send_all(number, body))
            assert await response.read() == body
            await sending

    async def test_that_is_not_read_blocks_no_other(self) -> None:
        async with connected() as (connection, peer):
            slow, number = await opened(connection, peer)
            sending = asyncio.create_task(peer.send_all(number, bytes(3 * 2**20)))
            await eventually(lambda: peer.h2.local_flow_control_window(number) == 0)
            other, _ = await opened(connection, peer, b"{}", end=True)
            assert await other.read() == b"{}"
            assert not sending.done()
            assert len(await slow.read()) == 3 * 2**20
            await sending

    async def test_that_is_released_gives_its_window_back(self) -> None:
        async with connected() as (connection, peer):
            before = connection._h2.remote_flow_control_window
            response, number = await opened(connection, peer)
            window = connection._h2._inbound_flow_control_window_manager
            sending = asyncio.create_task(peer.send_all(number, bytes(3 * 2**20)))
            await eventually(lambda: peer.h2.local_flow_control_window(number) == 0)
            response.release()
            await peer.until(lambda: peer.resets)
            sending.cancel()
            assert before is not None
            assert window._bytes_processed + window.current_window_size == window.max_window_size

    async def test_without_a_status_is_an_error(self) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: peer.requests)
            peer.reset(1, 0)
            with pytest.raises(ConnectionError, match="reset with code 0"):
                await sending

    async def test_that_pauses_too_long_is_an_error(self) -> None:
        async with connected() as (connection, peer):
            wanted = request(timeouts=Timeouts(PATIENCE, PATIENCE, 0.01))
            sending = asyncio.create_task(connection.request(wanted))
            await peer.until(lambda: peer.requests)
            peer.respond(1, b"{", end=False)
            with pytest.raises(TimeoutError):
                await (await sending).read()

    async def test_body_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_stream, "BODY_BYTES", 10)
        async with connected() as (connection, peer):
            response, _ = await opened(connection, peer, b"x" * 11, end=True)
            with pytest.raises(MalformedResponse, match="more than 10 bytes"):
                await response.read()

    async def test_line_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http2_stream, "EVENT_BYTES", 10)
        async with connected() as (connection, peer):
            response, _ = await opened(connection, peer, b"x" * 10 + b"\n", b"y" * 6, b"y" * 6)
            lines = response.lines()
            assert await anext(lines) == b"x" * 10
            with pytest.raises(MalformedResponse, match="larger than any object"):
                await anext(lines)

    async def test_lines_come_in_any_pieces(self) -> None:
        pieces = [b"a", b"b\nc\n", b"\n", b"d", b"e"]
        async with connected() as (connection, peer):
            response, _ = await opened(connection, peer, *pieces, end=True)
            assert [line async for line in response.lines()] == [b"ab", b"c", b"", b"de"]


class TestReset:
    async def test_ends_only_its_stream(self) -> None:
        async with connected() as (connection, peer):
            one, number = await opened(connection, peer, b"a\n")
            other, _ = await opened(connection, peer, b"b\n", end=True)
            peer.reset(number, ErrorCodes.INTERNAL_ERROR)
            lines = one.lines()
            assert await anext(lines) == b"a", "what arrived before is not lost"
            with pytest.raises(ConnectionError, match="reset with code 2"):
                await anext(lines)
            assert await other.read() == b"b\n"

    async def test_of_a_refused_stream_lets_it_be_sent_again(self) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: peer.requests)
            peer.reset(1, ErrorCodes.REFUSED_STREAM)
            with pytest.raises(NotProcessed):
                await sending


class TestGoAway:
    async def test_lets_open_streams_end(self) -> None:
        async with connected() as (connection, peer):
            response, number = await opened(connection, peer, b"a\n")
            peer.transport.write(peer.go_away(number))
            await eventually(lambda: not connection.has_room)
            with pytest.raises(NotProcessed):
                await connection.request(request())
            peer.send(number, b"b\n")
            peer.h2.end_stream(number)
            peer.flush()
            assert [line async for line in response.lines()] == [b"a", b"b"]
            assert not connection.closed
            response.release()
            await peer.lost.wait()

    async def test_returns_the_streams_that_are_not_processed(self) -> None:
        async with connected() as (connection, peer):
            first, number = await opened(connection, peer)
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: len(peer.requests) == 2)
            peer.transport.write(peer.go_away(number))
            with pytest.raises(NotProcessed):
                await sending
            first.release()
            await peer.lost.wait()

    async def test_may_come_twice_as_from_a_server_that_drains(self) -> None:
        async with connected() as (connection, peer):
            response, number = await opened(connection, peer)
            peer.transport.write(peer.go_away(2**31 - 1))
            peer.transport.write(peer.go_away(number))
            peer.send(number, b"{}")
            peer.h2.end_stream(number)
            peer.flush()
            assert await response.read() == b"{}"

    @pytest.mark.parametrize("size", [1, 5, 9, 13, 17, 30])
    async def test_is_found_in_any_pieces(self, size: int) -> None:
        async with connected() as (connection, peer):
            response, number = await opened(connection, peer)
            peer.h2.send_data(number, b"a\n")
            before = peer.h2.data_to_send()
            peer.h2.send_data(number, b"b\n", end_stream=True)
            data = before + peer.go_away(number, b"debug") + peer.h2.data_to_send()
            for start in range(0, len(data), size):
                peer.transport.write(data[start : start + size])
                await asyncio.sleep(0)
            assert await response.read() == b"a\nb\n"

    async def test_without_streams_closes_the_connection(self) -> None:
        async with connected() as (connection, peer):
            peer.transport.write(peer.go_away(0))
            await peer.lost.wait()
            await eventually(lambda: connection.closed)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class TestGarbage:
    @pytest.mark.parametrize(
        "data",
        [
            b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100),
            b"\xff" * 64,
            frame(0, b"data on no stream"),
            frame(0, b"data on a stream that was not opened", stream=7),
            frame(1, b"\xff\xff\xff\xff\xff\xff\xff", flags=4, stream=1),
            frame(1, b"\x80", flags=4, stream=1),
            frame(3, b"", stream=1),
            frame(4, b"\x00"),
            frame(5, bytes(20), flags=4, stream=1),
            frame(6, b"short"),
            frame(7, b""),
            frame(8, bytes(4), stream=0),
            frame(9, b"", flags=4, stream=1),
        ],
    )
    async def test_ends_the_connection(self, data: bytes) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: peer.requests)
            peer.silent = True
            peer.transport.write(data)
            with pytest.raises(ConnectionError):
                await sending
            await peer.lost.wait()
            assert connection.closed
            assert not connection.has_room

    async def test_includes_headers_that_are_too_long(self) -> None:
        async with connected() as (connection, peer):
            sending = asyncio.create_task(connection.request(request()))
            await peer.until(lambda: peer.requests)
            peer.silent = True
            fields = [(f"x-{number}", "x" * 1000) for number in range(100)]
            peer.h2.send_headers(1, [*OK, *fields])
            peer.flush()
            with pytest.raises(ConnectionError):
                await sending

    async def test_does_not_include_unknown_frames(self) -> None:
        async with connected() as (connection, peer):
            peer.transport.write(frame(200, b"?"))
            response, _ = await opened(connection, peer, b"{}", end=True)
            assert await response.read() == b"{}"


async def test_lost_connection_ends_all_streams() -> None:
    async with connected() as (connection, peer):
        responses = [(await opened(connection, peer))[0] for _ in range(3)]
        peer.transport.abort()
        for one in responses:
            with pytest.raises(ConnectionError):
                await one.read()
        assert connection.closed


async def test_server_that_closes_at_once_is_an_error() -> None:
    class Closing(Peer):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    with pytest.raises(ConnectionError):
        async with connected(Closing()):
            pass
