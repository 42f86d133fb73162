"""Exchanges with the h2 library: each side receives what the other sends."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import h2.events as theirs
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extproc.edge.http2 import Data, Ended, Event, Http2Connection, Limits, Opened, Reset
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, OK
from tests.edge.http2.test_properties import check_queues
from tests.extent import extent

LIMITS = Limits(stream_window=70_000, connection_window=100_000, concurrent_streams=8)
REQUEST = [(name.decode(), value.decode()) for name, value in wire.REQUEST]

picks = st.integers(0, 2**16)
sizes = st.sampled_from([1, 10, 1_000, 16_384, 16_385, 60_000])
windows = st.sampled_from([0, 1, 100, 16_384, 65_535, 200_000])
cuts = st.lists(st.integers(0, 200) | st.integers(0, 100_000), max_size=4)


class Client:
    """An h2 client, which raises ProtocolError for frames that we should not have sent."""

    def __init__(self, initial: dict[SettingCodes, int]) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=True, initial_values=initial)
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.h2.initiate_connection()
        self.open: set[int] = set()
        """Streams on which it may still send."""
        self.sent: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.received: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.pings = 0
        self.acknowledged = False

    def receive(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            match event:
                case theirs.DataReceived():
                    self.received[event.stream_id] += event.data
                case theirs.StreamEnded():
                    assert event.stream_id not in self.ended
                    self.ended.add(event.stream_id)
                case theirs.StreamReset():
                    self.reset.add(event.stream_id)
                    self.open.discard(event.stream_id)
                case theirs.SettingsAcknowledged():
                    self.acknowledged = True
                case theirs.PingAckReceived():
                    self.pings -= 1
                case theirs.ConnectionTerminated():
                    raise AssertionError(event)


class Server:
    """An application that sends what the test chooses."""

    def __init__(self) -> None:
        self.connection = Http2Connection(LIMITS)
        self.open: set[int] = set()
        """Streams on which it may still send."""
        self.sent: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.received: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.held: defaultdict[int, int] = defaultdict(int)
        self.ended: set[int] = set()
        self.reset: set[int] = set()

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive(data, 0.0):
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Opened):
            assert event.headers == dict(wire.REQUEST)
            self.open.add(event.stream)
            self.connection.sender.start_response(event.stream, OK)
        elif isinstance(event, Data):
            self.received[event.stream] += event.data
            self.held[event.stream] += len(event.data)
        elif isinstance(event, Ended):
            self.ended.add(event.stream)
        elif isinstance(event, Reset):
            self.reset.add(event.stream)
            self.open.discard(event.stream)


class Conversation(RuleBasedStateMachine):
    """Both sides take random legal steps, and the network delivers bytes at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.up = self.down = b""
        self.random = Random(0)

    @initialize(window=windows, frame_size=st.sampled_from([16_384, 20_000, 10**6]))
    def set_up(self, window: int, frame_size: int) -> None:
        codes = SettingCodes
        initial = {codes.INITIAL_WINDOW_SIZE: window, codes.MAX_FRAME_SIZE: frame_size}
        self.client = Client(initial)

    # Before the first acknowledgement h2 would take that for one of this.
    @precondition(lambda self: self.client.acknowledged)
    @rule(window=windows)
    def client_changes_its_mind(self, window: int) -> None:
        self.client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})

    @rule(end=st.booleans())
    def client_opens(self, end: bool) -> None:
        client = self.client.h2
        if client.open_outbound_streams < client.remote_settings.max_concurrent_streams:
            stream = client.get_next_available_stream_id()
            client.send_headers(stream, REQUEST, end_stream=end)
            if not end:
                self.client.open.add(stream)

    @precondition(lambda self: self.client.open)
    @rule(pick=picks, size=sizes, padding=st.none() | st.integers(0, 255), end=st.booleans())
    def client_sends(self, pick: int, size: int, padding: int | None, end: bool) -> None:
        client = self.client.h2
        stream = chosen(self.client.open, pick)
        overhead = 0 if padding is None else padding + 1
        room = min(client.local_flow_control_window(stream), client.max_outbound_frame_size)
        if room >= overhead:
            data = self.random.randbytes(min(size, room - overhead))
            client.send_data(stream, data, end_stream=end, pad_length=padding)
            self.client.sent[stream] += data
            if end:
                self.client.open.remove(stream)

    @precondition(lambda self: self.client.open)
    @rule(pick=picks)
    def client_sends_trailers(self, pick: int) -> None:
        stream = chosen(self.client.open, pick)
        self.client.h2.send_headers(stream, [("x-checksum", "1")], end_stream=True)
        self.client.open.remove(stream)

    @precondition(lambda self: self.client.open)
    @rule(pick=picks)
    def client_resets(self, pick: int) -> None:
        stream = chosen(self.client.open, pick)
        self.client.h2.reset_stream(stream, wire.CANCEL)
        self.client.open.remove(stream)
        self.client.reset.add(stream)

    @rule()
    def client_pings(self) -> None:
        self.client.h2.ping(b"12345678")
        self.client.pings += 1

    @rule(pick=picks, increment=sizes)
    def client_reads(self, pick: int, increment: int) -> None:
        alive = [0, *(s for s in self.client.h2.streams if not self.client.h2.streams[s].closed)]
        stream = chosen(alive, pick)
        self.client.h2.increment_flow_control_window(increment, stream or None)

    @precondition(lambda self: self.server.open)
    @rule(pick=picks, size=sizes)
    def server_sends(self, pick: int, size: int) -> None:
        stream = chosen(self.server.open, pick)
        data = self.random.randbytes(size)
        self.server.connection.sender.send(stream, data)
        self.server.sent[stream] += data

    @precondition(lambda self: self.server.open)
    @rule(pick=picks)
    def server_consumes(self, pick: int) -> None:
        stream = chosen(self.server.open, pick)
        self.server.connection.windows.consumed(stream, self.server.held.pop(stream, 0))

    @precondition(lambda self: self.server.open)
    @rule(pick=picks)
    def server_ends(self, pick: int) -> None:
        stream = chosen(self.server.open, pick)
        self.server.connection.sender.end(stream, DONE)
        self.server.open.remove(stream)

    @precondition(lambda self: self.server.open)
    @rule(pick=picks)
    def server_resets(self, pick: int) -> None:
        stream = chosen(self.server.open, pick)
        self.server.connection.sender.reset(stream, wire.CANCEL)
        self.server.open.remove(stream)
        self.server.reset.add(stream)

    @rule(places=cuts)
    def server_receives(self, places: list[int]) -> None:
        self.up += self.client.h2.data_to_send()
        *parts, self.up = [*wire.cut(self.up, places), b""][: len(places) + 2] or [b""]
        for part in parts:
            self.server.receive(part)

    @rule(places=cuts)
    def client_receives(self, places: list[int]) -> None:
        self.down += self.server.connection.take()
        *parts, self.down = [*wire.cut(self.down, places), b""][: len(places) + 2] or [b""]
        for part in parts:
            self.client.receive(part)

    @invariant()
    def received_data_was_sent(self) -> None:
        for stream, received in self.server.received.items():
            assert self.client.sent[stream].startswith(received)
        for stream, received in self.client.received.items():
            assert self.server.sent[stream].startswith(received)
        assert not self.server.connection.closed
        check_queues(self.server.connection)

    def teardown(self) -> None:
        """Let both sides read everything. Nothing may be left."""
        self._exchange()
        self.client.h2.increment_flow_control_window(2**30)
        self.client_changes_its_mind(10**8)
        for _ in range(4):
            self._exchange()
            for stream in list(self.server.open):
                self.server.connection.windows.consumed(stream, self.server.held.pop(stream, 0))
        for stream in list(self.client.open):
            self.client.h2.end_stream(stream)
        self._exchange()
        for stream in list(self.server.open):
            self.server.connection.sender.end(stream, DONE)
        self._exchange()
        self._check_the_end()

    def _exchange(self) -> None:
        while self.up or self.down or self._moves():
            self.server.receive(self.up)
            self.client.receive(self.down)
            self.up = self.down = b""

    def _moves(self) -> bool:
        self.up += self.client.h2.data_to_send()
        self.down += self.server.connection.take()
        return bool(self.up or self.down)

    def _check_the_end(self) -> None:
        client, server = self.client, self.server
        assert server.connection.streams.open == {}
        assert client.pings == 0
        for stream in server.ended - client.reset - server.reset:
            assert server.received[stream] == client.sent[stream]
        for stream in client.ended - server.reset:
            assert client.received[stream] == server.sent[stream]
        window = server.connection.windows.connection
        assert window.left + window.consumed == LIMITS.connection_window


def chosen(streams: object, pick: int) -> int:
    assert isinstance(streams, set | list)
    ordered = sorted(streams)
    return int(ordered[pick % len(ordered)])


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=extent(10, 80), stateful_step_count=60)
