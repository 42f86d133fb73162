"""Incomplete messages: their memory is bounded, and all of them become complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from struct import iter_unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.edge.grpc.calls import Method
from extproc.edge.grpc.connection import GrpcConnection
from extproc.edge.grpc.messages import MOST_BYTES, framed
from extproc.edge.http2 import LIMITS
from tests.edge.http2 import wire
from tests.extent import extent

ECHO_SIZE = b"/lab.Echo/Size"
REQUEST = [(name, ECHO_SIZE if name == b":path" else value) for name, value in wire.REQUEST]
FRAME = 16_384
MIB = 1 << 20


class Size:
    """A handler that responds with the size of each message."""

    owes_replies = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        return (b"%d" % len(message),)

    def close(self) -> None:
        return


class Client:
    """A client that sends one message on each stream, frame by frame, as its windows allow."""

    def __init__(self, unfinished: int = 32 * MIB, most: int = 72 * MIB) -> None:
        methods = {ECHO_SIZE: Method(lambda *_: Size())}
        self.server = GrpcConnection(methods, self.receive, unfinished, most)
        self.window = LIMITS.stream_window
        self.acknowledges = True
        self.windows: dict[int, int] = {0: 65_535}
        self.unsent: dict[int, int] = {}
        self.answers: dict[int, bytes] = {}
        self.refused: set[int] = set()
        self.peak = 0
        self.server.receive(wire.PREFACE + wire.settings([(4, MIB)]) + wire.SETTINGS_ACK, 0.0)
        opening = wire.frame(wire.HEADERS, wire.END_HEADERS | 1, 1, b"\x20" + wire.block(REQUEST))
        self.server.receive(opening + wire.window_update(0, 1 << 30), 0.0)
        self.receive()

    def open(self, stream: int, size: int) -> None:
        """Begin a message of this size."""
        self.windows[stream] = self.window
        self.unsent[stream] = 5 + size
        self.server.receive(wire.headers(stream, REQUEST), 0.0)
        self._write(stream, b"\0" + size.to_bytes(4) + bytes(min(size, FRAME - 5)))

    def can_send(self, stream: int) -> bool:
        return min(self.windows[0], self.windows[stream]) > 0

    def ready(self) -> list[int]:
        """Return the streams that may send now."""
        return [stream for stream in self.unsent if self.can_send(stream)]

    def send(self, stream: int) -> None:
        """Send the next frame of a message."""
        room = min(FRAME, self.windows[0], self.windows[stream], self.unsent[stream])
        self._write(stream, bytes(room))

    def send_all(self, choose: Callable[[list[int]], int]) -> None:
        """Send until no stream has data left, or none may send."""
        while ready := self.ready():
            self.send(choose(ready))

    def receive(self) -> None:
        self.peak = max(self.peak, self.server._unfinished.size)
        data = self.server.take()
        while data:
            size, kind, flags = int.from_bytes(data[:3]), data[3], data[4]
            stream, payload = int.from_bytes(data[5:9]), data[9 : 9 + size]
            data = data[9 + size :]
            if kind == wire.SETTINGS and payload:
                self._resize(dict(iter_unpack(">HI", payload))[4])
            elif kind == wire.WINDOW_UPDATE and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload)
            elif kind == wire.DATA:
                self.answers[stream] = payload[5:]
            elif kind == wire.HEADERS and flags & 1 and b"grpc-status\x018" in payload:
                self.refused.add(stream)
                self.unsent.pop(stream, None)

    def _resize(self, window: int) -> None:
        """Apply SETTINGS and acknowledge them."""
        self.windows = {
            stream: size + (window - self.window if stream else 0)
            for stream, size in self.windows.items()
        }
        self.window = window
        if self.acknowledges:
            self.server.receive(wire.SETTINGS_ACK, 0.0)

    def _write(self, stream: int, data: bytes) -> None:
        self.windows[0] -= len(data)
        self.windows[stream] -= len(data)
        self.unsent[stream] -= len(data)
        if not self.unsent[stream]:
            del self.unsent[stream]
        self.server.receive(wire.data(stream, data), 0.0)
        self.receive()


def in_turns() -> Callable[[list[int]], int]:
    turn = iter(range(10**9))
    return lambda ready: ready[next(turn) % len(ready)]


def test_hundreds_of_large_messages_complete_in_bounded_memory() -> None:
    client = Client()
    streams = range(3, extent(503, 1_003), 2)
    for stream in streams:
        client.open(stream, MIB if stream > 43 else 8 * MIB)
    client.send_all(in_turns())
    assert client.refused == set()
    assert len(client.answers) == len(streams)
    assert client.answers[3] == b"%d" % (8 * MIB)
    assert client.peak < 72 * MIB
    assert client.server._unfinished.size == 0


def test_few_large_messages_are_not_delayed() -> None:
    client = Client()
    for stream in (3, 5, 7):
        client.open(stream, 2 * MIB)
    while client.unsent:
        assert all(map(client.can_send, client.unsent))
        client.send(max(client.unsent, key=lambda one: client.unsent[one]))
    assert len(client.answers) == 3


def test_above_the_limit_the_first_messages_continue_first() -> None:
    client = Client(unfinished=8 * MIB)
    for stream in (3, 5, 7, 9):
        client.open(stream, 8 * MIB)
    client.send_all(in_turns())
    assert [set(list(client.answers)[:2]), set(client.answers)] == [{3, 5}, {3, 5, 7, 9}]
    assert client.peak < 30 * MIB


@settings(deadline=None)
@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=30), st.randoms())
def test_all_messages_complete_in_any_order_of_sending(sizes: list[int], random: Random) -> None:
    client = Client(unfinished=100_000, most=100 * MIB)
    for number, size in enumerate(sizes):
        client.open(2 * number + 3, size)
    client.send_all(random.choice)
    found = {stream: int(answer) for stream, answer in client.answers.items()}
    assert found == {2 * number + 3: size for number, size in enumerate(sizes)}
    assert client.server._unfinished.size == 0


def test_next_messages_continue_when_the_first_streams_end_unfinished() -> None:
    client = Client(unfinished=100_000)
    for stream in (3, 5):
        client.open(stream, 8 * MIB)
    client.open(7, 500_000)
    for stream in (3, 5):
        while client.unsent[stream] > 4 * MIB:
            client.send(stream)
    while client.can_send(7):
        client.send(7)
    assert client.unsent[7] > 0
    for stream in (3, 5):
        del client.unsent[stream]
        client.server.receive(wire.rst_stream(stream), 0.0)
        client.receive()
    client.send_all(in_turns())
    assert client.answers[7] == b"500000"


def test_windows_are_narrow_under_pressure_and_restored_afterwards() -> None:
    client = Client()
    for stream in range(3, 203, 2):
        client.open(stream, MIB)
    for _ in range(16):
        for stream in client.ready():
            if client.can_send(stream):
                client.send(stream)
    assert client.window < LIMITS.stream_window
    client.send_all(in_turns())
    assert client.window == LIMITS.stream_window
    assert len(client.answers) == 100
    assert client.refused == set()


def test_unfinished_bytes_are_bounded_and_the_last_messages_refused() -> None:
    client = Client()
    client.acknowledges = False
    for stream in range(3, 4_003, 2):
        client.open(stream, MOST_BYTES)
        while client.can_send(stream) and stream in client.unsent:
            client.send(stream)
            if client.unsent.get(stream, 0) < 5 * MIB:
                break
    assert client.peak <= 72 * MIB + FRAME
    assert client.server._unfinished.size <= 72 * MIB
    assert min(client.refused) > 200
    assert 3 not in client.refused


def test_small_messages_are_answered_while_others_are_unfinished() -> None:
    client = Client()
    for stream in range(3, 1_003, 2):
        client.open(stream, MOST_BYTES)
        while client.can_send(stream) and client.unsent[stream] > 12 * MIB:
            client.send(stream)
    assert client.refused == set()
    client.open(2_001, 100)
    assert client.answers == {2_001: b"100"}


@pytest.mark.parametrize("size", [2, 100])
def test_message_in_tiny_pieces_takes_no_more_memory_than_its_bytes(size: int) -> None:
    client = Client()
    client.open(3, MIB)
    (call,) = client.server._calls.values()
    for _ in range(400):
        client._write(3, bytes(size))
    assert call.messages.unfinished == FRAME + 400 * size
    # One piece is the first frame; the others are not objects of their own.
    assert len(call.messages._pieces) == 1


def test_message_cut_off_by_the_end_of_its_stream_is_an_error() -> None:
    client = Client()
    client.server.receive(
        wire.headers(3, REQUEST) + wire.data(3, framed(b"hello")[:-1], end=True), 0.0
    )
    assert b"grpc-status\x0213" in client.server.take()
