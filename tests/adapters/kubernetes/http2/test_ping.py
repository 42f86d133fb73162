"""A server that no longer responds is noticed."""

from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.kubernetes import http2_ping
from extproc.adapters.kubernetes.http2_ping import Ping
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.http2.peers import connected, opened
from tests.extent import PATIENCE


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_ping, "PING_SECONDS", 0.01)


async def test_silent_server_is_noticed_within_35_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert http2_ping.PING_SECONDS + http2_ping.SILENCE_SECONDS + http2_ping._LATE_SECONDS < 35


async def test_silence_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_ping, "PING_SECONDS", PATIENCE)
    async with connected() as (connection, peer):
        response, _ = await opened(connection, peer)
        peer.silent = True
        # The times pass at once, so that a busy machine cannot end the connection earlier.
        connection._ping._ping()
        connection._ping._check()
        with pytest.raises(ConnectionError, match=r"no response to an HTTP/2 PING"):
            await response.read()
        assert connection.closed


async def test_each_response_shows_watches_that_the_server_is_there() -> None:
    async with connected() as (connection, peer):
        responses = [(await opened(connection, peer))[0] for _ in range(2)]
        for one in responses:
            lines = one.lines()
            for _ in range(3):
                assert await anext(lines) is None
        assert connection.has_room


async def test_response_does_not_count_as_progress_of_a_body() -> None:
    async with connected() as (connection, peer):
        response, _ = await opened(connection, peer)
        reading = asyncio.create_task(response.read())
        progress = response._progress_at
        await peer.until(lambda: len([e for e in peer.events if "Ping" in repr(e)]) > 3)
        assert response._progress_at == progress
        reading.cancel()


async def test_other_frames_are_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_ping, "PING_SECONDS", PATIENCE)
    async with connected() as (connection, peer):
        response, number = await opened(connection, peer)
        peer.silent = True
        # The times pass at once, so that a busy machine cannot miss a sign of life.
        connection._ping._ping()
        peer.send(number, b"event\n")
        assert await anext(line async for line in response.lines() if line) == b"event"
        connection._ping._check()
        assert not connection.closed


async def test_timer_that_is_late_waits_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    # The sidecar itself was stopped: the response has arrived, but was not read yet.
    monkeypatch.setattr(http2_ping, "SILENCE_SECONDS", 0.0)
    silences: list[float] = []
    ping = Ping(lambda: None, silences.append)
    ping.start()
    assert ping._timer is not None
    ping._timer.cancel()
    loop = asyncio.get_running_loop()
    ping._timer = loop.call_at(loop.time() - 30, lambda: None)
    ping._received = False
    ping._check()
    assert silences == []
    ping.received()
    ping._check()
    assert silences == []
    monkeypatch.setattr(http2_ping, "PING_SECONDS", 60)
    ping.acknowledged()
    await eventually(lambda: ping._timer is not None)
    ping.stop()
