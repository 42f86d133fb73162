"""The events of a stream do not depend on how its bytes are split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.load import sse
from extproc.lab.load.sse import EventTooLongError, Scanner

LINES = st.sampled_from(
    [
        *("data: {}", "data:x", "data", "data: ", "data: a: b", ": a comment", "event: ping"),
        *("id: 7", "retry: 10", "dat", "", "", "data: [DONE]", "database: x", "data: ü"),
    ]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"])), max_size=12).map(
    lambda lines: "".join(line + end for line, end in lines).encode()
)


def as_the_standard_says(stream: bytes) -> list[bytes]:
    """Parse line by line, as the standard describes; skip events without data."""
    lines = stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[bytes] = []
    data: list[bytes] = []
    for line in lines[:-1]:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
        else:
            events.append(b"\n".join(data))
            data = []
    return [event for event in events if event]


def scanned(pieces: list[bytes]) -> list[bytes]:
    scanner = Scanner()
    return [event for piece in pieces for event in scanner.feed(piece)]


@given(STREAMS, st.lists(st.integers(0, 200)))
def test_any_split_gives_the_events_of_the_standard(stream: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert scanned(pieces) == as_the_standard_says(stream)


@given(STREAMS)
def test_single_bytes_give_the_events_of_the_standard(stream: bytes) -> None:
    pieces = [bytes([byte]) for byte in stream]
    assert scanned(pieces) == as_the_standard_says(stream)


def test_read_of_several_events_and_a_part() -> None:
    scanner = Scanner()
    assert scanner.feed(b"data: 1\n\ndata: 2\n\nda") == [b"1", b"2"]
    assert scanner.feed(b"ta: 3\n") == []
    assert scanner.feed(b"\n") == [b"3"]


def test_event_ends_with_its_last_line_end() -> None:
    assert Scanner().feed(b"data: 1\r\r") == [b"1"]
    assert Scanner().feed(b"data: 1\r\n\r\n") == [b"1"]


def test_end_of_stream_ends_an_event() -> None:
    scanner = Scanner()
    scanner.feed(b"data: 1\n\ndata: [DONE]\n")
    assert scanner.end() == [b"[DONE]"]
    assert scanner.end() == []
    assert Scanner().end() == []


def test_event_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    scanner = Scanner()
    scanner.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLongError):
        scanner.feed(b"x" * 10)
