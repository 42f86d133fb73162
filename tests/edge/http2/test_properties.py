"""Any bytes from a client, in any pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.http2 import Data, Ended, Event, Http2Connection, Limits, Opened, Reset
from tests.core.builders import thorough
from tests.edge.http2 import wire
from tests.edge.http2.client import DONE, OK
from tests.edge.http2.strategies import anything, conversations, places

LIMITS = Limits(
    concurrent_streams=4,
    stream_window=70_000,
    connection_window=100_000,
    remembered=2,
    budget=30,
    budget_per_second=1,
)


class Application:
    """An application that responds to events and checks their order."""

    def __init__(self, connection: Http2Connection) -> None:
        self.connection = connection
        self.open: set[int] = set()
        self.sending: set[int] = set()
        self.begun: set[int] = set()

    def receive(self, events: list[Event]) -> None:
        for event in events:
            self._handle(event.stream, event)

    def _handle(self, stream: int, event: Event) -> None:
        if isinstance(event, Opened):
            assert stream not in self.begun
            self.begun.add(stream)
            self.open.add(stream)
            self.sending.add(stream)
            return
        assert stream in self.open
        if isinstance(event, Data):
            assert stream in self.sending
            assert event.data
        elif isinstance(event, Ended):
            self.sending.remove(stream)
        else:
            self.open.remove(stream)

    def act(self, draw: st.DataObject) -> None:
        """Call a random method for one of its streams."""
        if not self.open:
            return
        stream = draw.draw(st.sampled_from(sorted(self.open)))
        match draw.draw(st.integers(0, 5)):
            case 0:
                self.connection.sender.start_response(stream, OK)
            case 1:
                self.connection.sender.send(stream, bytes(draw.draw(st.integers(0, 70_000))))
            case 2:
                self.connection.windows.consumed(stream, draw.draw(st.integers(0, 70_000)))
            case 3:
                self.connection.sender.end(stream, DONE)
                self.open.remove(stream)
            case 4:
                self.connection.sender.reset(stream, wire.CANCEL)
                self.open.remove(stream)
            case _:
                self.connection.go_away()


def check_queues(connection: Http2Connection) -> None:
    """Check that exactly the streams that can send are in the line."""
    waiting = connection.streams.waiting
    assert not waiting or connection.sender._window <= 0
    for state in connection.streams.open.values():
        assert state.queued == sum(map(len, state.queue or ()))
        assert (state.id in waiting) == (state.queued > 0 and state.send_window > 0)
        assert state.queued or not state.ending


def check_size(connection: Http2Connection) -> None:
    """Check that memory is bounded and that the windows add up."""
    streams = connection.streams.open
    assert len(streams) <= 4
    assert len(connection.streams.recent) <= 2
    assert len(connection._buffer._tail) < 9 + 16_384
    assert len(connection._receiver._requests) <= 64
    assert not connection.streams.recent.keys() & streams.keys()
    if not connection.closed:
        held = sum(70_000 - s.receive_window - s.consumed for s in streams.values())
        window = connection.windows.connection
        assert window.left + window.consumed + held == 100_000


@thorough
@given(anything, places, st.data())
def test_any_bytes_and_calls_yield_only_frames(
    whole: bytes, cuts: list[int], draw: st.DataObject
) -> None:
    connection = Http2Connection(LIMITS)
    application = Application(connection)
    output = b""
    for i, part in enumerate(wire.cut(whole, cuts)):
        application.receive(connection.receive(part, i * 0.01))
        application.act(draw)
        check_queues(connection)
        check_size(connection)
        output += connection.take()
    application.receive(connection.lost())
    assert application.open == set()
    found = wire.parsed(output)
    assert len([f for f in wire.faults(found) if f[1] != wire.NO_ERROR]) <= 1


@thorough
@given(conversations, places)
def test_pieces_of_the_input_do_not_matter(whole: bytes, cuts: list[int]) -> None:
    outcomes = []
    for parts in ([whole], wire.cut(whole, cuts), [whole[i : i + 1] for i in range(len(whole))]):
        if len(parts) > 3_000:
            continue
        connection = Http2Connection(LIMITS)
        events = [event for part in parts for event in connection.receive(part, 0)]
        outcomes.append((events, connection.take(), connection.closed))
    assert outcomes.count(outcomes[0]) == len(outcomes)


@thorough
@given(conversations)
def test_no_stream_is_open_after_a_fault(whole: bytes) -> None:
    connection = Http2Connection(LIMITS)
    open_ = set()
    for event in connection.receive(whole, 0):
        if isinstance(event, Opened):
            open_.add(event.stream)
        elif isinstance(event, Reset):
            open_.remove(event.stream)
    assert len(open_) == len(connection.streams.open)
    faults = wire.faults(wire.parsed(connection.take()))
    assert (len(faults) == 1) == connection._failed
