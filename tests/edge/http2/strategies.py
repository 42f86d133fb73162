"""Frames of every kind, right and wrong."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.edge.http2 import wire

streams = st.sampled_from([1, 3, 5, 7, 9, 11])
any_stream = streams | st.sampled_from([0, 2, 6, 101, 2**31 - 1, 2**31 + 3])
codes = st.integers(0, 20)
increments = st.sampled_from([0, 1, 100, 5_000, 2**30, 2**31 - 1]) | st.integers(0, 2**31 - 1)
payloads = st.binary(max_size=40) | st.sampled_from([bytes(1_000), bytes(16_384)])
names = st.sampled_from([1, 2, 3, 4, 5, 6, 9, 99])
values = st.sampled_from([0, 1, 2, 100, 16_384, 65_535, 70_000, 2**24, 2**31 - 1, 2**31])

MORE_FIELDS = (
    (b"x-request-id", b"1"),
    (b"cookie", b"a=b"),
    (b"Upper", b"x"),
    (b":path", b"/again"),
    (b"connection", b"close"),
    (b"x", b"line\nfeed"),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[bytes, bytes], ...]:
    """Draw a header list, mostly well-formed. All have `:authority`, which h2 requires."""
    fields = list(wire.REQUEST)
    if draw(st.integers(0, 4)) == 0:
        del fields[draw(st.sampled_from([0, 1, 2, 4, 5]))]
    return (*fields, *draw(st.lists(st.sampled_from(MORE_FIELDS[:2]), max_size=2)))


@st.composite
def header_frames(draw: st.DrawFn, which: st.SearchStrategy[int] = any_stream) -> bytes:
    """Draw a whole header block in one frame or two, possibly padded or with a priority."""
    stream = draw(which)
    fields = draw(requests() | st.lists(st.sampled_from(MORE_FIELDS), min_size=1, max_size=2))
    block = wire.block(fields)
    flags = draw(st.sampled_from([0, wire.END_STREAM]))
    before = after = b""
    if draw(st.booleans()):
        flags |= wire.WITH_PRIORITY
        before = b"\0\0\0\0\x10"
    if draw(st.booleans()):
        flags |= wire.PADDED
        before, after = b"\x03" + before, b"\0\0\0"
    if draw(st.booleans()):
        return wire.frame(wire.HEADERS, flags | wire.END_HEADERS, stream, before + block + after)
    middle = draw(st.integers(1, len(block)))  # Of none h2 thinks that padding hides it.
    first = wire.frame(wire.HEADERS, flags, stream, before + block[:middle] + after)
    return first + wire.frame(wire.CONTINUATION, wire.END_HEADERS, stream, block[middle:])


frames_of_streams = st.one_of(
    header_frames(streams),
    header_frames(any_stream),
    st.builds(wire.data, streams, payloads, end=st.booleans()),
    st.builds(wire.data, any_stream, payloads, end=st.booleans()),
    st.builds(
        wire.padded_data, streams, st.binary(max_size=9), st.integers(0, 255), end=st.booleans()
    ),
    st.builds(wire.rst_stream, any_stream, codes),
    st.builds(wire.window_update, any_stream, increments),
    st.builds(lambda stream: wire.frame(wire.PRIORITY, 0, stream, b"\0\0\0\0\x10"), any_stream),
)
frames_of_the_connection = st.one_of(
    st.builds(wire.settings, st.dictionaries(names, values, max_size=3).map(dict.items)),
    st.builds(wire.ping, st.binary(min_size=8, max_size=8), ack=st.booleans()),
    st.builds(wire.window_update, st.just(0), increments),
)
crooked = st.builds(
    wire.frame, st.integers(0, 12), st.integers(0, 255), any_stream, st.binary(max_size=20)
)
frames = st.one_of(
    frames_of_streams,
    frames_of_streams,
    frames_of_the_connection,
    st.builds(wire.goaway, any_stream, codes),
    st.just(wire.SETTINGS_ACK),
    crooked,
)


@st.composite
def mutated(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Draw bytes with a few changes, removals or insertions."""
    spoilt = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(spoilt)))
        spoilt[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(spoilt)


good_beginnings = st.lists(frames, max_size=25).map(
    lambda found: wire.PREFACE + wire.settings() + b"".join(found)
)
conversations = st.one_of(good_beginnings, good_beginnings, mutated(good_beginnings))
anything = st.one_of(st.binary(max_size=200), conversations)
places = st.lists(st.integers(0, 3_000), max_size=30)
