"""Limits on useless frames: a peer may send many at once, but not for long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.edge.http2 import Limits
from extproc.edge.http2.errors import ConnectionFault
from extproc.edge.http2.limits import Budget
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, Http2Client

TIGHT = Limits(budget=50, budget_per_second=10, remembered=1)


def rapid_reset(i: int) -> bytes:
    return wire.headers(2 * i + 11) + wire.rst_stream(2 * i + 11)


def malformed(i: int) -> bytes:
    return wire.headers(2 * i + 11, [])


FLOODS: dict[str, Callable[[int], bytes]] = {
    "PING": lambda _: wire.ping(),
    "answers to no PING": lambda _: wire.ping(ack=True),
    "SETTINGS": lambda _: wire.settings(),
    "SETTINGS ACK": lambda _: wire.SETTINGS_ACK,
    "PRIORITY": lambda i: wire.frame(wire.PRIORITY, 0, 2 * i + 1, bytes(5)),
    "unknown": lambda _: wire.frame(0xEE, 0, 0, b"x"),
    "GOAWAY": lambda _: wire.goaway(),
    "empty DATA": lambda _: wire.data(3),
    "padding only": lambda _: wire.padded_data(3, b"", 10),
    "rapid reset": rapid_reset,
    "malformed": malformed,
    "update of the connection": lambda _: wire.window_update(0, 10_000),
    "update of a stream": lambda _: wire.window_update(3, 10_000),
    "update of a closed stream": lambda _: wire.window_update(1, 1),
    "DATA of a closed stream": lambda _: wire.data(1, b"x"),
    "RST_STREAM of a closed stream": lambda _: wire.rst_stream(1),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_ends_the_connection(flood: str) -> None:
    client = Http2Client(TIGHT)
    client.open(3)
    written = 0
    for i in range(50 + 5):
        client.send(FLOODS[flood](i))
        written += len(client.connection._output)
        if client.connection.closed:
            break
    assert i > 40
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM
    assert written <= sum(range(3 * i))


@pytest.mark.parametrize("flood", FLOODS)
def test_slow_rate_of_the_same_frames_is_accepted(flood: str) -> None:
    client = Http2Client(TIGHT)
    client.open(3)
    for i in range(500):
        client.now += 0.1
        client.send(FLOODS[flood](i))
    heard = client.received()
    assert not wire.faults(heard)


def test_answered_streams_may_all_be_reset_at_once() -> None:
    client = Http2Client(TIGHT)
    streams = range(3, 2_003, 2)
    client.open(*streams)
    assert len(client.send(*map(wire.rst_stream, streams))) == len(streams)
    assert not client.connection.closed


def test_ten_thousand_unanswered_requests_may_be_cancelled() -> None:
    client = Http2Client()
    client.send(*[wire.headers(i) + wire.data(i, b"body") for i in range(3, 20_003, 2)])
    client.send(*[wire.rst_stream(i) for i in range(3, 20_003, 2)])
    client.send(*[wire.ping()] * 100)
    assert not client.connection.closed


def test_streams_that_we_ended_may_all_be_reset_by_the_client() -> None:
    client = Http2Client(Limits(budget=50))
    streams = range(3, 2_003, 2)
    client.open(*streams)
    for stream in streams:
        client.connection.sender.end(stream, DONE)
    client.send(*[wire.data(stream, b"x") + wire.rst_stream(stream) for stream in streams])
    assert not client.connection.closed


def test_client_may_acknowledge_each_message() -> None:
    client = Http2Client(TIGHT)
    client.open(3)
    for _ in range(10_000):
        client.connection.sender.send(3, b"hello")
        client.send(wire.window_update(3, 5), wire.window_update(0, 5))
        client.connection.take()
    assert not client.connection.closed


def test_tiny_window_updates_end_the_connection() -> None:
    client = Http2Client(TIGHT, settings=[(4, 0)])
    client.open(3)
    client.connection.sender.send(3, bytes(10_000))
    for _ in range(60):
        client.send(wire.window_update(3, 1))
    assert client.fault_code() == wire.ENHANCE_YOUR_CALM


def test_moving_the_windows_of_many_streams_takes_more_tokens() -> None:
    client = Http2Client(Limits(budget=200))
    client.open(*range(3, 2_003, 2))
    for i in range(25):
        client.send(wire.settings([(4, i)]))
    assert client.connection.closed


def test_old_closed_streams_are_forgotten() -> None:
    client = Http2Client(Limits(remembered=10))
    for stream in range(3, 2_003, 2):
        client.open(stream)
        client.send(wire.data(stream, b"x"))
        client.connection.sender.end(stream, DONE)
        client.connection.take()
    assert len(client.connection.streams.recent) == 10
    assert client.connection.streams.open == {}


class TestBudget:
    def test_regains_tokens_with_time_up_to_its_capacity(self) -> None:
        budget = Budget(3, per_second=2)
        assert spent(budget, 0, 0, 0, 0) == [True, True, True, False]
        budget.left = 0
        assert spent(budget, 1, 1, 1) == [True, True, False]
        budget.left = 0
        assert spent(budget, 100, 100, 100, 100) == [True, True, True, False]

    def test_accepts_a_clock_that_goes_back(self) -> None:
        budget = Budget(2, per_second=1)
        assert spent(budget, 10, 5, 10) == [True, True, False]


def spent(budget: Budget, *times: float) -> list[bool]:
    """Take a token at each of these times. Return which attempts succeeded."""
    return [takes_token(budget, now) for now in times]


def takes_token(budget: Budget, now: float) -> bool:
    budget.now = now
    try:
        budget.spend()
    except ConnectionFault:
        return False
    return True
