"""Many streams with small windows and slow readers: all data must arrive."""

from __future__ import annotations

from collections import Counter
from random import Random

import h2.events as theirs
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.http2 import Data, Ended, Http2Connection, Limits, Opened
from tests.core.builders import brief
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, OK, Http2Client
from tests.edge.http2.wire import REQUEST

SMALL = Limits(stream_window=65_535, connection_window=65_535)
STREAMS = 200
BODY = 4_000


class Echo:
    """A server that echoes every body, and consumes only bytes that it has sent back."""

    def __init__(self) -> None:
        self.connection = Http2Connection(SMALL)
        self._held: dict[int, int] = {}
        self.most_held = 0
        self.now = 0.0

    def receive(self, data: bytes) -> None:
        connection = self.connection
        self.now += 0.1
        for event in connection.receive(data, self.now):
            if isinstance(event, Opened):
                connection.sender.start_response(event.stream, OK)
            elif isinstance(event, Data):
                connection.sender.send(event.stream, event.data)
                held = self._held.get(event.stream, 0)
                self._held[event.stream] = held + len(event.data)
            elif isinstance(event, Ended):
                connection.sender.end(event.stream, DONE)
        self.most_held = max(self.most_held, sum(self._held.values()))
        for stream in [s for s in self._held if not connection.sender.queued(s)]:
            connection.windows.consumed(stream, self._held.pop(stream))


class SlowReader:
    """An h2 client that sends as much as possible and reads a little of a random stream."""

    def __init__(self, window: int, random: Random) -> None:
        config = H2Configuration(client_side=True)
        self.h2 = H2Connection(config)
        self.h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.h2.initiate_connection()
        self._random = random
        self._unread: dict[int, int] = {}
        self.unsent = {2 * i + 1: random.randbytes(BODY) for i in range(STREAMS)}
        self.bodies = dict(self.unsent)
        self.received = dict.fromkeys(self.bodies, b"")
        self.ended = 0
        for stream in self.bodies:
            self.h2.send_headers(stream, REQUEST)

    def receive(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case theirs.DataReceived():
                    self.received[event.stream_id] += event.data
                    unread = self._unread.get(event.stream_id, 0)
                    self._unread[event.stream_id] = unread + event.flow_controlled_length
                case theirs.StreamEnded():
                    self.ended += 1
                    self._read(event.stream_id)
                case theirs.ConnectionTerminated():
                    raise AssertionError(event)

    def go_on(self) -> None:
        self._send()
        for stream in self._random.sample(sorted(self._unread), k=min(9, len(self._unread))):
            self._read(stream)

    def _read(self, stream: int) -> None:
        size = self._unread.pop(stream, 0)
        if size:
            self.h2.increment_flow_control_window(size)
            if not self.h2.streams[stream].closed:
                self.h2.increment_flow_control_window(size, stream)

    def _send(self) -> None:
        for stream, rest in list(self.unsent.items()):
            size = min(self.h2.local_flow_control_window(stream), 16_384, len(rest))
            if not size:
                continue
            self.h2.send_data(stream, rest[:size], end_stream=size == len(rest))
            self.unsent[stream] = rest[size:]
            if size == len(rest):
                del self.unsent[stream]


@pytest.mark.parametrize("window", [100, 1_000, 65_535])
def test_every_body_is_echoed_completely(window: int) -> None:
    server, client = Echo(), SlowReader(window, Random(window))
    for _ in range(3_000):
        server.receive(client.h2.data_to_send())
        client.receive(server.connection.take())
        client.go_on()
        if client.ended == STREAMS:
            break
    assert client.received == client.bodies
    assert server.connection.streams.open == {}
    assert server.most_held <= SMALL.connection_window


@brief
@given(st.lists(st.integers(1, 60_000), max_size=60))
def test_streams_take_equal_turns(updates: list[int]) -> None:
    client = Http2Client(settings=[(4, 10**6)])
    first, *others = range(3, 19, 2)
    client.open(first, *others)
    client.connection.sender.send(first, bytes(65_535))
    for stream in others:
        client.connection.sender.send(stream, bytes(600_000))
    client.received()
    client.send(*[wire.window_update(0, update) for update in updates])
    turns = Counter(frame.stream_id for frame in client.received())
    assert max(turns.values(), default=0) - min(map(turns.__getitem__, others)) <= 1
    waiting = sum(map(client.connection.sender.queued, others))
    assert sum(updates) == len(others) * 600_000 - waiting
